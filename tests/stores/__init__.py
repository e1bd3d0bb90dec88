"""Conformance of the stores."""

import pytest

for name in ("commit", "lost_task", "row", "run"):
    pytest.register_assert_rewrite(f"tests.stores.{name}_conformance")
