"""Calls that come at nearly the same time, done by the first of them for all."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


FEW = 4
"""Calls, each about something else, that tell how fast they come: as many are worth waiting for."""


class NotGatheredError(Exception):
    """It may not be done with those that gather, or with them it failed. Do it alone."""


class Gathering(Generic[Item, Answer]):
    """Joins calls: the first one waits a moment, then does it for all that came meanwhile.

    Where many come, each of something else, it waits as long as the last few took to come, and
    about as many join it; where few come, not at all.

    Nobody depends on another one for more than time: where the one that does it fails or is
    cancelled, the others hear that they have to do it alone.
    """

    def __init__(
        self, wait: Callable[[float], Awaitable[None]], *, most: int, longest: float
    ) -> None:
        """Gather at most so many.

        Args:
            wait: waits so many seconds, for others that come, or longer for reasons of its own.
            most: items that are done together.
            longest: seconds of such a wait; where a few do not come in it, there is none.
        """
        self._wait = wait
        self._most = most
        self._longest = longest
        self._came_at: dict[AbstractSet[Hashable], float] = {}
        self._open: _Group[Item, Answer] | None = None

    async def call(
        self,
        item: Item,
        do: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        *,
        keys: frozenset[Hashable],
    ) -> Answer:
        """The item's answer.

        Args:
            item: what is to be done.
            do: does all items, in their order, and answers each; it may have to do others' too.
            keys: what it is about; items that have one in common are never done together.

        Raises:
            NotGatheredError: it was not done, or is not known to be.
            Exception: what `do` raises, of an item that it had alone.
        """
        self._note(keys)
        group = self._open
        if group is not None and len(group.items) < self._most:
            if keys & group.keys:
                raise NotGatheredError
            return await group.join(item, keys)
        group = self._open = _Group(item, keys)
        try:
            answers = await self._done(group, do)
            group.answer(answers)
        except Exception as error:
            if len(group.items) > 1:
                raise NotGatheredError from error
            raise
        finally:
            group.dissolve()
        return answers[0]

    async def _done(
        self,
        group: "_Group[Item, Answer]",
        do: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
    ) -> Sequence[Answer]:
        try:
            await self._wait(self._seconds_for_a_few())
        finally:
            if self._open is group:
                self._open = None
        group.close()
        return await do(group.items)

    def _note(self, keys: AbstractSet[Hashable]) -> None:
        self._came_at.pop(keys, None)
        self._came_at[keys] = asyncio.get_running_loop().time()
        if len(self._came_at) > FEW:
            del self._came_at[next(iter(self._came_at))]

    def _seconds_for_a_few(self) -> float:
        took = asyncio.get_running_loop().time() - next(iter(self._came_at.values()))
        return took if len(self._came_at) == FEW and took <= self._longest else 0


class _Group(Generic[Item, Answer]):
    """The item of the one who does it, and those that joined."""

    def __init__(self, item: Item, keys: AbstractSet[Hashable]) -> None:
        self.items = [item]
        self.keys = set(keys)
        self._waiting: list[asyncio.Future[Answer]] = []

    async def join(self, item: Item, keys: AbstractSet[Hashable]) -> Answer:
        self.items.append(item)
        self.keys |= keys
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return await future

    def close(self) -> None:
        """Let go of what nobody waits for any more."""
        kept = [
            pair for pair in zip(self.items[1:], self._waiting, strict=True) if not pair[1].done()
        ]
        self.items[1:] = [item for item, _ in kept]
        self._waiting = [future for _, future in kept]

    def answer(self, answers: Sequence[Answer]) -> None:
        for future, answer in zip(self._waiting, answers[1:], strict=True):
            if not future.done():
                future.set_result(answer)

    def dissolve(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_exception(NotGatheredError())
