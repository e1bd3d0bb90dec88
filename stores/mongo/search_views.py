"""The conversations that a process has in memory for searching, within a bound for all of them."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from stores.mongo.documents import Document
from stores.mongo.search_view import LogView

MEMORY_BYTES = 256 * 1024 * 1024
"""Of all views of a process together: some 500,000 messages."""


@dataclass(kw_only=True)
class Slot:
    """A view with its lock; `last_id` is of the newest append that it took."""

    view: LogView
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    last_id: Document | None = None
    is_too_large: bool = False

    def begin_again(self, *, includes_own: bool) -> None:
        """Know nothing of the log."""
        self.view, self.last_id = LogView(includes_own=includes_own), None


class SearchViews:
    """The views of a process, the one that was used last at the end."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self.memory_bytes = memory_bytes
        self._slots: OrderedDict[tuple[str, str, bool], Slot] = OrderedDict()

    def slot(self, place: tuple[str, str, bool]) -> Slot:
        """The view of workspace, conversation, and whether the search's own calls count."""
        if place not in self._slots:
            self._slots[place] = Slot(view=LogView(includes_own=place[2]))
        self._slots.move_to_end(place)
        return self._slots[place]

    def settle(self, slot: Slot) -> None:
        """Keep to the bound: what was not used for longest goes; a view above it goes at once."""
        if slot.view.size_bytes > self.memory_bytes:
            slot.begin_again(includes_own=False)
            slot.is_too_large = True
        total = sum(each.view.size_bytes for each in self._slots.values())
        for place, each in list(self._slots.items()):
            if total <= self.memory_bytes:
                return
            if each is not slot and not each.lock.locked():
                total -= each.view.size_bytes
                del self._slots[place]
