"""Keys of what a run does: of its rounds, its calls, and the delegated runs behind calls.

A round's key is its step (`3`), a call's has its index too (`3/0`). Behind a call may be a run of
its own, whose keys follow the call's: `3/0/1` is its first round. Where a call has begun several
runs, the later ones are told apart by a number: `3/0:1`.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stores.records import RunRecord, ToolEffectRecord

CALL_METADATA = "delegated_by"
"""Metadata of a delegated run: step and index of the call that began it. Frozen."""

MOST_BRANCHES_DEEP = 16
"""Delegations below a turn that can be opened; runs may nest 8 deep, and tools may add to it."""

_DIGITS = r"(0|[1-9][0-9]{0,8})"
_PREFIX = re.compile(rf"{_DIGITS}/{_DIGITS}(:[1-9][0-9]{{0,3}})?")


def branch_steps(prefix: str) -> tuple[str, ...] | None:
    """The calls on the way to a branch, outermost first: `2/0/1/3` is `2/0`, then `1/3`.

    `None`: no branch can have that key.
    """
    parts = prefix.split("/")
    if len(parts) % 2 or len(parts) > 2 * MOST_BRANCHES_DEEP:
        return None
    steps = tuple("/".join(parts[at : at + 2]) for at in range(0, len(parts), 2))
    return steps if all(_PREFIX.fullmatch(each) for each in steps) else None


def within(prefix: str | None, key: str) -> str:
    """The key as it is told to a reader of that branch."""
    return key if prefix is None else f"{prefix}/{key}"


def call_key(effect: ToolEffectRecord) -> str:
    """The key of a call within its run; of one that was recorded without a place, its id."""
    if effect.step_index is None or effect.call_index is None:
        return effect.tool_call_id
    return f"{effect.step_index}/{effect.call_index}"


def delegate_run_id(
    run_id: str | None, effect_key: str | None, *, activity_index: int, order: int
) -> str:
    """The id of a run that a tool begins in an activity: SHA-256 (hex) over its place. Frozen.

    Args:
        run_id: of the run that calls the tool.
        effect_key: of the call.
        activity_index: which of the call's activities.
        order: of the run among those that the activity begins.
    """
    place = [run_id, effect_key, activity_index, order]
    return hashlib.sha256(json.dumps(place, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A delegated run, and the key that opens it."""

    key: str
    call: str
    run: RunRecord


def branches_of(
    run_id: str, children: Sequence[RunRecord], calls: Iterable[str]
) -> dict[str, Branch]:
    """The delegated runs of a run, by their keys within it.

    Args:
        run_id: of the run.
        children: runs whose parent it is, by the time of their start.
        calls: keys of its calls.
    """
    if not children:
        return {}
    known = _call_by_run(run_id, children, calls)
    found: dict[str, Branch] = {}
    for child in children:
        call = known.get(child.run_id)
        if call is not None:
            number = sum(each.call == call for each in found.values())
            key = f"{call}:{number}" if number else call
            found[key] = Branch(key=key, call=call, run=child)
    return found


def _call_by_run(
    run_id: str, children: Sequence[RunRecord], calls: Iterable[str]
) -> dict[str, str]:
    """Which call began which run: the run tells, or its id was made of the call's place."""
    told = {
        each.run_id: each.metadata[CALL_METADATA]
        for each in children
        if CALL_METADATA in each.metadata
    }
    untold = {each.run_id for each in children} - set(told)
    for call in calls:
        for number in range(len(untold)):
            place = delegate_run_id(run_id, call, activity_index=0, order=number)
            if place in untold:
                told[place] = call
    return told
