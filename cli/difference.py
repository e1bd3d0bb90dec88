"""`perdure diff`: where the transcripts of two runs part."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connections import known_run
from cli.failures import NotFoundError
from cli.options import AsJson, Workspace
from cli.output import print_json, print_text

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

    from stores.records import ContinuableSnapshot


def diff_command(
    *,
    run_a: Annotated[str, typer.Argument(metavar="RUN_A", help="Id of a run.", show_default=False)],
    run_b: Annotated[
        str, typer.Argument(metavar="RUN_B", help="Id of another run.", show_default=False)
    ],
    workspace: Workspace = "default",
    as_json: AsJson = False,
) -> None:
    """Show where the transcripts of two runs part.

    Their newest snapshots are compared, without times and ids of runs: first how many messages they
    share from the beginning, then the rest of each.
    """
    a, b = asyncio.run(_newest(run_a, run_b, workspace))
    common = _common(a.messages, b.messages)
    if as_json:
        print_json({"common": common, "a": _document(a, common), "b": _document(b, common)})
        return
    print_text(f"Both begin with the same {common} messages.")
    for name, snapshot in (("A", a), ("B", b)):
        _print_rest(name, snapshot, common)


async def _newest(
    run_a: str, run_b: str, workspace: str
) -> "tuple[ContinuableSnapshot, ContinuableSnapshot]":
    return await _snapshot(run_a, workspace), await _snapshot(run_b, workspace)


async def _snapshot(run_id: str, workspace: str) -> "ContinuableSnapshot":
    async with known_run(run_id, workspace) as (store, _):
        found = await store.latest_snapshot(run_id=run_id, include_interrupted=True)
    if found is None:
        message = f"run {run_id!r} has saved no history; `perdure events {run_id}` says how it went"
        raise NotFoundError(message)
    return found


def _common(a: "Sequence[ModelMessage]", b: "Sequence[ModelMessage]") -> int:
    """How many messages both begin with."""
    from stores.digests import message_meaning  # noqa: PLC0415

    count = 0
    for one, other in zip(a, b, strict=False):
        if message_meaning(one) != message_meaning(other):
            break
        count += 1
    return count


def _print_rest(name: str, snapshot: "ContinuableSnapshot", common: int) -> None:
    from cli.transcripts import describe_messages  # noqa: PLC0415

    rest = snapshot.messages[common:]
    place = f"snapshot {snapshot.sequence}, step {snapshot.step_index}, {snapshot.state}"
    print_text(f"\n{name}  {snapshot.run_id}: {len(rest)} more ({place})")
    for text in describe_messages(rest, first=common):
        for line in text.split("\n"):
            print_text(f"{name}  {line}")


def _document(snapshot: "ContinuableSnapshot", common: int) -> dict[str, Any]:
    from pydantic_ai.messages import ModelMessagesTypeAdapter  # noqa: PLC0415

    return {
        "run_id": snapshot.run_id,
        "snapshot": snapshot.sequence,
        "message_count": len(snapshot.messages),
        "rest": ModelMessagesTypeAdapter.dump_python(snapshot.messages[common:], mode="json"),
    }
