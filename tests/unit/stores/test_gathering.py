"""Calls that are done together: who does them, and what becomes of the others when it fails."""

import asyncio
from collections.abc import Sequence

import pytest

from stores.mongo.gathering import Gathering, NotGatheredError


class Doing:
    """Doubles numbers, when it is let; keeps what it was given together."""

    def __init__(self, *, most: int = 3, longest: float = 60) -> None:
        self.gate = asyncio.Event()
        self.done: list[list[int]] = []
        self.gathering = Gathering[int, int](self._wait, most=most, longest=longest)
        self.waits: list[float] = []
        self.failure: BaseException | None = None

    async def _wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        await self.gate.wait()

    async def _do(self, items: Sequence[int]) -> list[int]:
        self.done.append(list(items))
        if self.failure is not None:
            raise self.failure
        return [2 * each for each in items]

    async def begin(self, item: int, *keys: str) -> asyncio.Task[int]:
        """The call, which has come as far as it can before the gate opens."""
        call = self.gathering.call(item, self._do, keys=frozenset(keys or {str(item)}))
        task = asyncio.create_task(call)
        await asyncio.sleep(0)
        return task


async def test_the_first_call_does_all_that_came_meanwhile() -> None:
    doing = Doing()
    tasks = [await doing.begin(each) for each in (1, 2, 3)]
    doing.gate.set()
    assert await asyncio.gather(*tasks) == [2, 4, 6]
    assert doing.done == [[1, 2, 3]]


async def test_what_comes_later_is_done_later() -> None:
    doing = Doing()
    doing.gate.set()
    assert [await (await doing.begin(each)) for each in (1, 2)] == [2, 4]
    assert doing.done == [[1], [2]]


async def test_a_group_that_is_full_is_followed_by_another() -> None:
    doing = Doing(most=2)
    tasks = [await doing.begin(each) for each in (1, 2, 3)]
    doing.gate.set()
    assert await asyncio.gather(*tasks) == [2, 4, 6]
    assert doing.done == [[1, 2], [3]]


async def test_items_with_a_common_key_are_not_done_together() -> None:
    doing = Doing()
    first = await doing.begin(1, "a", "b")
    second = await doing.begin(2, "c")
    with pytest.raises(NotGatheredError):
        await (await doing.begin(3, "c", "d"))
    doing.gate.set()
    assert [await first, await second] == [2, 4]


async def test_when_it_fails_all_hear_that_it_was_not_done() -> None:
    doing = Doing()
    doing.failure = ValueError("no")
    tasks = [await doing.begin(each) for each in (1, 2)]
    doing.gate.set()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in errors] == [NotGatheredError, NotGatheredError]


async def test_an_item_alone_hears_what_went_wrong() -> None:
    doing = Doing()
    doing.failure = ValueError("no")
    doing.gate.set()
    with pytest.raises(ValueError, match="no"):
        await (await doing.begin(1))


async def test_when_the_first_is_cancelled_the_others_hear_of_it() -> None:
    doing = Doing()
    first, second = await doing.begin(1), await doing.begin(2)
    first.cancel()
    with pytest.raises(NotGatheredError):
        await second
    doing.gate.set()
    assert await (await doing.begin(3)) == 6
    assert doing.done == [[3]]


async def test_what_nobody_waits_for_any_more_is_not_done() -> None:
    doing = Doing()
    first, second, third = [await doing.begin(each) for each in (1, 2, 3)]
    second.cancel()
    await asyncio.wait([second])
    doing.gate.set()
    assert [await first, await third] == [2, 6]
    assert doing.done == [[1, 3]]


async def test_only_where_many_come_they_are_waited_for() -> None:
    doing = Doing()
    doing.gate.set()
    for each in range(6):
        await (await doing.begin(each))
    assert doing.waits[:3] == [0, 0, 0]
    assert all(0 < each < 60 for each in doing.waits[3:])


async def test_what_one_caller_does_one_after_the_other_waits_for_nobody() -> None:
    doing = Doing()
    doing.gate.set()
    for each in range(6):
        await (await doing.begin(each, "run"))
    assert doing.waits == [0] * 6


async def test_what_comes_too_slowly_is_not_waited_for() -> None:
    doing = Doing(longest=0)
    doing.gate.set()
    for each in range(6):
        await (await doing.begin(each))
    assert doing.waits == [0] * 6
