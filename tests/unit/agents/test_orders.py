import pytest

from agents.orders import agent


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DEMO_PAUSE_SECONDS", "0")


async def test_each_line_is_an_order_of_its_own() -> None:
    result = await agent.run("3 brass lamps to Oslo\n\n2 chairs to Bergen")

    first, second = result.output.splitlines()
    assert first.startswith("Order for '3 brass lamps to Oslo' is on its way")
    assert second.startswith("Order for '2 chairs to Bergen' is on its way")
    assert result.usage.requests == 2 + 2 * 7


async def test_nothing_is_delegated_without_an_order() -> None:
    result = await agent.run("\n")

    assert (result.output, result.usage.tool_calls) == ("There is no order.", 0)
