"""What a store holds of a run, compared with what its histories say that it must hold."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from stores.digests import load_message, message_meaning
from stores.effects import START, EffectRow, Transition
from stores.histories import positions_in
from stores.rows import EventRow, KeyedRow, PositionRow, Row, RunRow, SnapshotRow, same_content
from stores.run_rows import Mending, RunRows

Kind = Literal["gap", "diverged"]
"""The store lacks what a history holds, or holds something else."""

Keyed = TypeVar("Keyed", EventRow, SnapshotRow)

_ADDRESS = re.compile(r"0x[0-9a-f]+")
"""In an error's words: where an object lay in the memory of one process."""

_OF_KEYED = ("sequence", "step_index", "context")
_OF_EVENT = (*_OF_KEYED, "event", "call_index", "tool_call_id", "tool_name", "error_type")
_OF_SNAPSHOT = (*_OF_KEYED, "state", "ranges")
_OF_CALL = ("tool_call_id", "tool_name", "step_index", "call_index", "sequence")
_OF_START = ("effect", "arguments_digest", "arguments_summary")
_OF_RUN = (
    *("registration_id", "conversation_id", "parent_run_id", "agent_name", "metadata"),
    *("principal", "continued_from", "forked_from", "from_snapshot"),
)
_OF_SETTLED_RUN = ("state", "usage", "branches")


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What the histories that were replayed can tell of.

    Attributes:
        newest: by branch the number of the newest commit that they hold.
        open_branch: where more may be written than its history holds: its execution goes on, or
            was ended without a word.
        is_whole: no execution of the run is missing.
    """

    newest: Mapping[str, int]
    open_branch: str | None = None
    is_whole: bool = True

    def place_of(
        self, branch: str, number: int | None
    ) -> Literal["told", "ahead", "outside", "untold"]:
        """How the histories stand to what was written there.

        `told`: they hold it, or it is wrong; `ahead`: they do not hold it yet; `outside`: it was
        written outside a workflow; `untold`: by an execution whose history is not here.
        """
        if number is None:
            return "outside"
        if branch not in self.newest:
            return "untold"
        is_ahead = number > self.newest[branch] and branch == self.open_branch
        return "ahead" if is_ahead else "told"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One place where store and history are not the same.

    Attributes:
        boundary: whose operation it is; `message` is one that a snapshot names.
        key: of the operation; of a message its position.
        sequence: the place in the run's order, where it has one.
        number: of the commit in its execution.
        what: in words, without content.
    """

    kind: Kind
    run_id: str
    boundary: str
    key: str
    what: str
    sequence: int | None = None
    number: int | None = None


@dataclass(kw_only=True)
class Comparison:
    """What came of it. The counts are of rows.

    Attributes:
        ahead: stored, and not in the history yet.
        outside: written outside the workflow, which no history tells of.
        untold: of executions whose histories are gone.
        pruned: taken away by retention.
        mending: what makes the store as the histories are.
    """

    differences: list[Difference] = field(default_factory=list[Difference])
    compared: int = 0
    ahead: int = 0
    outside: int = 0
    untold: int = 0
    pruned: int = 0
    mending: Mending = field(default_factory=Mending)


def compare(run_id: str, expected: RunRows, stored: RunRows, scope: Scope) -> Comparison:
    """Compare the rows of a run.

    Not compared are times, which activities read, and generated ids in messages that answer no
    call; of messages counts what they mean.

    Args:
        run_id: of the run.
        expected: what the histories' commits leave in an empty store.
        stored: what the store holds.
        scope: what the histories can tell of.
    """
    return _Comparing(run_id, expected, stored, scope).done()


class _Comparing:
    def __init__(self, run_id: str, expected: RunRows, stored: RunRows, scope: Scope) -> None:
        self._run_id = run_id
        self._expected = expected
        self._stored = stored
        self._scope = scope
        self._result = Comparison()
        self._events: list[EventRow] = []
        self._snapshots: list[SnapshotRow] = []
        self._effects: list[EffectRow] = []
        self._positions: list[PositionRow] = []
        self._texts: dict[int, str] = {}

    def done(self) -> Comparison:
        """All kinds of rows, in the order in which a reader meets them."""
        wanted, held = self._expected, self._stored
        self._events = self._keyed("append_event", wanted.events, held.events, _OF_EVENT)
        self._snapshots = self._keyed(
            "save_snapshot", wanted.snapshots, held.snapshots, _OF_SNAPSHOT
        )
        self._compare_effects()
        self._compare_messages()
        run = self._compare_run()
        self._result.differences.sort(key=_place)
        self._result.mending = Mending(
            run=run,
            events=tuple(self._events),
            snapshots=tuple(self._snapshots),
            effects=tuple(self._effects),
            positions=tuple(self._positions),
            texts=self._texts,
        )
        return self._result

    def _note(self, kind: Kind, boundary: str, key: str | None, what: str, row: object) -> None:
        difference = Difference(
            kind=kind,
            run_id=self._run_id,
            boundary=boundary,
            key=str(key),
            what=what,
            sequence=getattr(row, "sequence", None),
            number=getattr(row, "number", None),
        )
        self._result.differences.append(difference)

    def _is_extra(self, branch: str, number: int | None) -> bool:
        """Whether a row that no history holds is wrong; else it is counted by its reason."""
        match self._scope.place_of(branch, number):
            case "told":
                return True
            case "ahead":
                self._result.ahead += 1
            case "outside":
                self._result.outside += 1
            case "untold":
                self._result.untold += 1
        return False

    # Events and snapshots

    def _keyed(
        self, boundary: str, wanted: Iterable[Keyed], held: Iterable[Keyed], names: tuple[str, ...]
    ) -> list[Keyed]:
        stored = {_identity(row): row for row in held}
        mended: list[Keyed] = []
        for row in wanted:
            found = stored.pop(_identity(row), None)
            self._result.compared += 1
            if found is None and self._stored.are_details_pruned:
                self._result.pruned += 1
            elif found is None:
                self._note("gap", boundary, row.key, "is missing", row)
                mended.append(replace(row, row_id=None))
            elif found.mark == "pruned":
                self._result.pruned += 1
            elif differing := _differing(row, found, names):
                what = f"differs in {', '.join(differing)}"
                self._note("diverged", boundary, row.key, what, row)
                mended.append(replace(row, row_id=found.row_id, at=found.at))
        for row in stored.values():
            if row.mark is None and self._is_extra(row.branch, row.number):
                self._note("diverged", boundary, row.key, "is in no history", row)
                mended.append(replace(row, mark="superseded"))
        return mended

    # Effects

    def _compare_effects(self) -> None:
        stored = {(row.branch, row.effect_key): row for row in self._stored.effects}
        for row in self._expected.effects:
            found = stored.pop((row.branch, row.effect_key), None)
            self._result.compared += 1
            if found is not None:
                self._compare_effect(row, found)
            elif self._stored.are_details_pruned:
                self._result.pruned += 1
            else:
                self._note("gap", "start_tool_effect", row.effect_key, "is missing", row)
                self._effects.append(replace(row, row_id=None, revision=0))
        for row in stored.values():
            wrong = [each for each in row.live if self._is_extra(each.branch, each.number)]
            if wrong:
                self._note("diverged", "start_tool_effect", row.effect_key, "is in no history", row)
                self._effects.append(_without(row, wrong))

    def _compare_effect(self, row: EffectRow, found: EffectRow) -> None:
        names: tuple[str, ...] = _OF_CALL
        if any(each.ordinal == START for each in row.live):
            names += _OF_START
        before = len(self._result.differences)
        if differing := [name for name in names if getattr(row, name) != getattr(found, name)]:
            what = f"differs in {', '.join(differing)}"
            self._note("diverged", "start_tool_effect", row.effect_key, what, row)
        stored = {each.ordinal: each for each in found.live}
        transitions = list(found.transitions)
        for each in row.live:
            held = stored.pop(each.ordinal, None)
            changed = self._compare_transition(row, each, held, found)
            if changed is not None and held is not None:
                transitions[transitions.index(held)] = changed
            elif changed is not None:
                transitions.append(changed)
        wrong = [each for each in stored.values() if self._is_extra(each.branch, each.number)]
        for each in wrong:
            self._note("diverged", _boundary(each), _key(row, each), "is in no history", row)
        if len(self._result.differences) > before:
            described = {name: getattr(row, name) for name in (*_OF_CALL, *_OF_START)}
            mended = replace(found, transitions=tuple(transitions), **described)
            self._effects.append(_without(mended, wrong))

    def _compare_transition(
        self, row: EffectRow, wanted: Transition, held: Transition | None, found: EffectRow
    ) -> Transition | None:
        """What to put in its place; `None` where it is as it should be."""
        boundary, key = _boundary(wanted), _key(row, wanted)
        if held is None:
            if any(each.number is None for each in found.live):
                return None  # somebody outside was faster, and a commit changed nothing any more
            self._note("gap", boundary, key, "is missing", row)
            return wanted
        if held.number is None:
            return None
        differing = _differing_transition(wanted, held)
        if not differing:
            return None
        self._note("diverged", boundary, key, f"differs in {', '.join(differing)}", row)
        return replace(wanted, at=held.at)

    # Messages

    def _compare_messages(self) -> None:
        """Of the positions that snapshots name which are there, or are put there again."""
        gone = {_identity(each) for each in self._stored.snapshots if each.mark == "pruned"}
        if self._stored.are_details_pruned:
            kept = {_identity(each) for each in self._stored.snapshots}
            gone |= {_identity(each) for each in self._expected.snapshots} - kept
        named = {
            position
            for each in self._expected.snapshots
            if _identity(each) not in gone
            for position in positions_in(each.ranges)
        }
        stored = {row.position: row for row in self._stored.positions}
        for row in sorted(self._expected.positions, key=lambda each: each.position):
            if row.position not in named:
                continue
            self._result.compared += 1
            text = self._expected.texts[row.message]
            found = stored.get(row.position)
            problem = self._problem_of(text, row, found)
            if problem is None:
                continue
            kind, what = problem
            self._note(kind, "message", str(row.position), what, row)
            row_id, revision = (found.row_id, found.revision) if found else (None, 0)
            self._positions.append(replace(row, row_id=row_id, revision=revision))
            self._texts[row.position] = text

    def _problem_of(
        self, text: str, row: PositionRow, found: PositionRow | None
    ) -> tuple[Kind, str] | None:
        if found is None:
            return "gap", "its position is missing"
        if found.message in self._stored.damaged:
            return "diverged", self._stored.damaged[found.message]
        held = self._stored.texts.get(found.message)
        if held is None:
            return "gap", "its text is missing"
        if found.message == row.message:
            return None
        is_equal = message_meaning(load_message(text)) == message_meaning(load_message(held))
        if is_equal or self._result.ahead:
            return None  # a newer version of it may have been saved since
        return "diverged", "says something else"

    # The run

    def _compare_run(self) -> RunRow | None:
        wanted, held = self._expected.run, self._stored.run
        if wanted is None:  # it was registered by an execution whose history is not here
            return None
        self._result.compared += 1
        if held is None:
            self._note("gap", "register_run", self._run_id, "is missing", wanted)
            return wanted
        is_settled = self._scope.is_whole and not self._result.ahead
        names = (*_OF_RUN, *(_OF_SETTLED_RUN if is_settled else ()))
        differing = [n for n in names if getattr(wanted.record, n) != getattr(held.record, n)]
        if is_settled and _words(wanted.record.error) != _words(held.record.error):
            differing.append("error")
        if not differing:
            return None
        what = f"differs in {', '.join(differing)}"
        self._note("diverged", "register_run", self._run_id, what, wanted)
        changed = {name: getattr(wanted.record, name) for name in differing}
        if "state" in differing:
            changed["ended_at"] = wanted.record.ended_at
        return replace(held, record=replace(held.record, **changed))


def _place(difference: Difference) -> tuple[bool, int, str, str]:
    is_unplaced = difference.sequence is None
    return (is_unplaced, difference.sequence or 0, difference.boundary, difference.key)


def _identity(row: KeyedRow) -> tuple[str, str]:
    return (row.branch, f"at {row.sequence}" if row.key is None else row.key)


def _differing(wanted: Keyed, held: Keyed, names: tuple[str, ...]) -> list[str]:
    """Fields that are not the same. A row that was written outside has no number."""
    found = [name for name in names if _are_unlike(wanted, held, name)]
    if held.number is not None and held.number != wanted.number:
        found.append("number")
    if not same_content(held.digest, held.scheme, wanted.digest):
        found.append("digest")
    if isinstance(held, EventRow):
        found += [name for name in ("usage", "run_state") if _are_unlike(wanted, held, name)]
        if _words(getattr(wanted, "error", None)) != _words(held.error):
            found.append("error")
    return found


def _differing_transition(wanted: Transition, held: Transition) -> list[str]:
    """Fields that are not the same. What a tool said of its effect may have come from outside."""
    names = ("status", "number", "branch", "resolution")
    found = [name for name in names if _are_unlike(wanted, held, name)]
    if _words(wanted.error) != _words(held.error):
        found.append("error")
    if wanted.effect_summary is not None and wanted.effect_summary != held.effect_summary:
        found.append("effect_summary")
    if not same_content(held.digest, held.scheme, wanted.digest):
        found.append("digest")
    return found


def _are_unlike(wanted: Row | Transition, held: Row | Transition, name: str) -> bool:
    return bool(getattr(wanted, name) != getattr(held, name))


def _words(text: str | None) -> str | None:
    return None if text is None else _ADDRESS.sub("0x", text)


def _boundary(transition: Transition) -> str:
    return "start_tool_effect" if transition.ordinal == START else "finish_tool_effect"


def _key(row: EffectRow, transition: Transition) -> str:
    is_start = transition.ordinal == START
    return row.effect_key if is_start else f"{row.effect_key}#{transition.ordinal}"


def _without(row: EffectRow, wrong: list[Transition]) -> EffectRow:
    return replace(
        row,
        transitions=tuple(
            replace(each, mark="superseded") if each in wrong else each for each in row.transitions
        ),
    )
