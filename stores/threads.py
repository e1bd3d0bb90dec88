"""Work that is for a thread only when it is long."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def in_thread_if(is_long: bool, work: Callable[[], Result]) -> Result:  # noqa: FBT001 - reads as a sentence
    """Do it in a thread when it is long; a thread costs a short one more than it takes."""
    return await asyncio.to_thread(work) if is_long else work()
