"""Waiting for the outside world: look again until a deadline, never sleep for a guessed time."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from inspect import isawaitable
from time import monotonic
from typing import TypeVar, cast, overload

T = TypeVar("T")

BETWEEN_LOOKS = timedelta(milliseconds=20)


@overload
async def eventually(
    look: Callable[[], Awaitable[T]], *, within: timedelta = ..., what: str = ...
) -> T: ...


@overload
async def eventually(look: Callable[[], T], *, within: timedelta = ..., what: str = ...) -> T: ...


async def eventually(
    look: Callable[[], T | Awaitable[T]],
    *,
    within: timedelta = timedelta(seconds=10),
    what: str = "",
) -> T:
    """Call `look` until it returns something true, and return that.

    An error that `look` raises is raised at once.

    Raises:
        AssertionError: nothing true came within the time; says what was seen last.
    """
    deadline = monotonic() + within.total_seconds()
    while True:
        found = look()
        seen = await cast("Awaitable[T]", found) if isawaitable(found) else found
        if seen:
            return seen
        if monotonic() > deadline:
            expected = what or getattr(look, "__name__", "the condition")
            message = f"{expected} did not come true within {within}; last seen: {seen!r}"
            raise AssertionError(message)
        await asyncio.sleep(BETWEEN_LOOKS.total_seconds())
