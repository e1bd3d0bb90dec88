"""`perdure resolve` without servers: what it refuses before it asks any."""

from collections.abc import Sequence

import pytest

from tests.cli.test_commands import NOWHERE, Perdure


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "say exactly one of --completed JSON, --failed TEXT and --run-again"),
        (["--failed", "no", "--run-again"], "say exactly one of"),
        (["--completed", "paid"], "--completed is no JSON"),
        (["--completed", "NaN"], "--completed is no JSON"),
        (["--failed", " "], "--failed is empty"),
        (["--run-again", "--by", ""], "--by is empty"),
    ],
)
def test_wrong_usage_is_refused_before_a_server_is_asked(
    arguments: Sequence[str], expected: str
) -> None:
    perdure = Perdure({"temporal_address": NOWHERE, "mongodb_uri": f"mongodb://{NOWHERE}"})
    done = perdure("resolve", "run", "1/0", *arguments)

    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stdout == ""
