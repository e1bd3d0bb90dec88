"""`perdure resolve` and `approve` without servers: what they refuse before they ask any."""

from collections.abc import Sequence

import pytest

from tests.cli.test_commands import NOWHERE, Perdure


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["resolve"], "say exactly one of --completed JSON, --failed TEXT and --run-again"),
        (["resolve", "--failed", "no", "--run-again"], "say exactly one of"),
        (["resolve", "--completed", "paid"], "--completed is no JSON"),
        (["resolve", "--completed", "NaN"], "--completed is no JSON"),
        (["resolve", "--failed", " "], "--failed is empty"),
        (["resolve", "--run-again", "--by", ""], "--by is empty"),
        (["approve", "--by", " "], "--by is empty"),
    ],
)
def test_wrong_usage_is_refused_before_a_server_is_asked(
    arguments: Sequence[str], expected: str
) -> None:
    perdure = Perdure({"temporal_address": NOWHERE, "mongodb_uri": f"mongodb://{NOWHERE}"})
    command, *options = arguments
    done = perdure(command, "run", "1/0", *options)

    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stdout == ""
