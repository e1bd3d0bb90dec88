"""Watching processes that are not, or not only, ours."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from tests.helpers.eventually import eventually

ENDED_WITHIN = timedelta(seconds=30)


def has_ended(pid: int) -> bool:
    """Whether no such process runs; one that only waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def order_of_ends(names: Mapping[int, str]) -> list[str]:
    """Return the names of the processes in the order in which these end."""
    left = dict(names)
    order: list[str] = []

    def all_ended() -> bool:
        order.extend(left.pop(pid) for pid in list(left) if has_ended(pid))
        return not left

    await eventually(all_ended, within=ENDED_WITHIN)
    return order
