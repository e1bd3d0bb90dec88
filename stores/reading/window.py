"""Which turns a page shows, and in which order they get their text."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from stores.access import ReadingRights
from stores.conversation_records import (
    UNFINISHED,
    ConversationRecord,
    Turn,
    TurnRecord,
    VariantRecord,
)
from stores.conversation_rows import ConversationRows, with_variants
from stores.reading.pages import HistoryPagination
from stores.reading.parameters import LARGEST_POSITION, HistoryParameters
from stores.reading.refusals import NotFoundError, no_conversation


@dataclass(frozen=True, kw_only=True)
class SelectedVariant:
    """The answer whose run is looked into; `is_readable`: the caller may see that run."""

    turn: Turn
    variant: VariantRecord
    is_readable: bool


@dataclass(frozen=True, kw_only=True)
class TurnWindow:
    """Turns in their order, and the same in the order in which they get text."""

    head: ConversationRecord
    turns: tuple[Turn, ...]
    by_need: tuple[Turn, ...]
    pagination: HistoryPagination
    selected: SelectedVariant | None = None


@dataclass(frozen=True, kw_only=True)
class _Timeline:
    """The visible turns of a conversation: what is hidden, concealed or a tombstone is not there.

    Nor are compactions: a summary is nobody's word.
    """

    rows: ConversationRows
    conversation_id: str
    turn_count: int
    _joined: dict[int, Turn] = field(default_factory=dict[int, Turn])

    async def older(self, count: int, *, before: int | None = None) -> list[TurnRecord]:
        """The newest ones before a position, newest first."""
        return await self._found(count, before=before, after=None, newest_first=True)

    async def newer(self, count: int, *, after: int) -> list[TurnRecord]:
        """The oldest ones after a position, oldest first."""
        return await self._found(count, before=None, after=after, newest_first=False)

    async def near(self, position: int, count: int) -> tuple[list[TurnRecord], list[TurnRecord]]:
        """The nearest ones before and after a position: one question, where none is hidden."""
        first, last = position - count, position + count
        rows = await self.rows.list_turns(
            self.conversation_id,
            after=first - 1,
            before=last + 1,
            limit=2 * count + 1,
            newest_first=False,
            only_visible=True,
        )
        found = await self._readable(rows)
        older = [each for each in reversed(found) if each.position < position]
        newer = [each for each in found if each.position > position]
        if len(older) < count and first > 0:
            older += await self.older(count - len(older), before=first)
        if len(newer) < count and last < self.turn_count - 1:
            newer += await self.newer(count - len(newer), after=last)
        return older, newer

    async def _found(
        self, count: int, *, before: int | None, after: int | None, newest_first: bool
    ) -> list[TurnRecord]:
        found: list[TurnRecord] = []
        while len(found) < count:  # ends: at an end of the conversation
            rows = await self.rows.list_turns(
                self.conversation_id,
                after=after,
                before=before,
                limit=count,
                newest_first=newest_first,
                only_visible=True,
            )
            found += await self._readable(rows)
            if len(rows) < count:
                break
            if newest_first:
                before = rows[-1].position
            else:
                after = rows[-1].position
        return found[:count]

    async def _readable(self, rows: Sequence[TurnRecord]) -> list[TurnRecord]:
        """Those that can be read, which of inherited ones their source tells."""
        inherited = [each for each in rows if each.is_inherited]
        await self.joined(inherited)
        return [
            each
            for each in rows
            if (self._joined[each.position].record if each.is_inherited else each).is_visible
        ]

    async def joined(self, rows: Sequence[TurnRecord]) -> list[Turn]:
        """These turns with words and variants; none is read twice."""
        missing = [each for each in rows if each.position not in self._joined]
        if missing:
            turns = await with_variants(self.rows, self.conversation_id, missing)
            self._joined.update({each.record.position: each for each in turns})
        return [self._joined[each.position] for each in rows]

    async def at(self, public_id: str) -> TurnRecord:
        """The turn with that id.

        Raises:
            NotFoundError: there is none in the timeline.
        """
        row = await self.rows.find_public_turn(self.conversation_id, public_id)
        if row is not None and await self._readable([row]):
            return row
        message = "the conversation has no such turn that can be read"
        raise NotFoundError(message, parameter="around_turn_public_id")


async def read_window(
    rows: ConversationRows,
    rights: ReadingRights,
    conversation_public_id: str,
    parameters: HistoryParameters,
) -> TurnWindow:
    """The window that is asked for, as of now.

    Raises:
        NotFoundError: no such conversation, or turn, that the caller may read.
    """
    head = await rows.find_public_conversation(conversation_public_id)
    if head is None or not rights.allow(head):
        raise no_conversation()
    timeline = _Timeline(
        rows=rows, conversation_id=head.conversation_id, turn_count=head.turn_count
    )
    found = await _Finder(head=head, timeline=timeline, limit=parameters.limit).find(parameters)
    if not parameters.include_execution or not found.turns:
        return found
    return await _with_selection(rows, rights, found, parameters)


@dataclass(frozen=True, kw_only=True)
class _Finder:
    head: ConversationRecord
    timeline: _Timeline
    limit: int

    async def find(self, parameters: HistoryParameters) -> TurnWindow:
        if parameters.around_turn_public_id is not None:
            return await self._around(parameters.around_turn_public_id)
        if parameters.after_position is not None:
            return await self._after(parameters.after_position)
        return await self._before(parameters.before_position)

    async def _before(self, position: int | None) -> TurnWindow:
        found = await self.timeline.older(self.limit + 1, before=position)
        newer = [] if position is None else await self.timeline.newer(1, after=position - 1)
        by_need = found[: self.limit]
        return await self._window(
            by_need,
            has_older=len(found) > self.limit,
            has_newer=bool(newer),
            edges=(None, None) if position is None else (position, position - 1),
        )

    async def _after(self, position: int) -> TurnWindow:
        found = await self.timeline.newer(self.limit + 1, after=position)
        older = await self.timeline.older(1, before=position + 1)
        return await self._window(
            found[: self.limit],
            has_older=bool(older),
            has_newer=len(found) > self.limit,
            edges=(min(position + 1, LARGEST_POSITION), position),
        )

    async def _around(self, public_id: str) -> TurnWindow:
        """Nearest first, counted in turns that can be read; of two equally near ones the newer."""
        target = await self.timeline.at(public_id)
        older, newer = await self.timeline.near(target.position, self.limit)
        near = [(rank, 0, each) for rank, each in enumerate(newer)]
        near += [(rank, 1, each) for rank, each in enumerate(older)]
        nearest = sorted(near, key=lambda each: each[:2])[: self.limit - 1]
        by_need = [target, *(each for _, _, each in nearest)]
        older_shown = sum(side for _, side, _ in nearest)
        return await self._window(
            by_need,
            has_older=len(older) > older_shown,
            has_newer=len(newer) > len(nearest) - older_shown,
            edges=(None, None),
        )

    async def _window(
        self,
        rows: Sequence[TurnRecord],
        *,
        has_older: bool,
        has_newer: bool,
        edges: tuple[int | None, int | None],
    ) -> TurnWindow:
        """The window of these, by need; `edges` are where to go on where there are none."""
        by_need = tuple(await self.timeline.joined(rows))
        turns = tuple(sorted(by_need, key=lambda each: each.record.position))
        before, after = edges
        if turns:
            before, after = turns[0].record.position, turns[-1].record.position
        pagination = HistoryPagination(
            before_position=before, after_position=after, has_older=has_older, has_newer=has_newer
        )
        return TurnWindow(head=self.head, turns=turns, by_need=by_need, pagination=pagination)


async def _with_selection(
    rows: ConversationRows,
    rights: ReadingRights,
    window: TurnWindow,
    parameters: HistoryParameters,
) -> TurnWindow:
    """The window with the turn around, or the newest, as the first that gets text."""
    is_around = parameters.around_turn_public_id is not None
    turn = window.by_need[0] if is_around else window.turns[-1]
    others = tuple(each for each in window.by_need if each is not turn)
    variant = _executing(turn)
    selected = None
    if variant is not None:
        is_readable = await _is_readable(rows, rights, turn, variant)
        selected = SelectedVariant(turn=turn, variant=variant, is_readable=is_readable)
    return TurnWindow(
        head=window.head,
        turns=window.turns,
        by_need=(turn, *others),
        pagination=window.pagination,
        selected=selected,
    )


def _executing(turn: Turn) -> VariantRecord | None:
    """The variant that runs, or is the next to; else the active one."""
    open_ones = [each for each in turn.variants if each.status in UNFINISHED]
    if open_ones:
        return min(open_ones, key=lambda each: (each.status != "running", each.order))
    return turn.active


async def _is_readable(
    rows: ConversationRows, rights: ReadingRights, turn: Turn, variant: VariantRecord
) -> bool:
    """Whether the run's own conversation, and the turn there, may be read.

    What a fork shows of another conversation is text: it opens no run of it.
    """
    if variant.conversation_id == turn.record.conversation_id:
        return True
    head = await rows.find_conversation(variant.conversation_id)
    if head is None or not rights.allow(head):
        return False
    source = await rows.find_turn(variant.conversation_id, variant.position)
    return source is not None and source.is_visible
