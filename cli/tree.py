"""`perdure tree`: how the runs of a conversation hang together."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cli.connections import current_settings, opened_store
from cli.failures import NotFoundError
from cli.options import AsJson, Workspace
from cli.output import moment, print_json, print_text
from cli.runs import joined_states

if TYPE_CHECKING:
    from stores.protocols import StepStore
    from stores.records import RunRecord

Relation = Literal["root", "continuation", "fork", "delegate"]


@dataclass(kw_only=True)
class _Node:
    run: "RunRecord"
    relation: Relation
    children: "list[_Node]" = field(default_factory=list["_Node"])

    def walk(self) -> "Iterator[_Node]":
        """This node and all below it, in the order in which they are drawn."""
        yield self
        for child in self.children:
            yield from child.walk()


def tree_command(
    *,
    conversation: Annotated[
        str, typer.Argument(metavar="CONVERSATION", help="Its id.", show_default=False)
    ],
    workspace: Workspace = "default",
    as_json: AsJson = False,
) -> None:
    """Draw the runs of a conversation with what came of them.

    Under each run are the runs that continue it, branch off from it, or work for it, also those
    that are in other conversations.
    """
    roots, states = asyncio.run(_grown(conversation, workspace))
    if as_json:
        runs = [_document(root, states) for root in roots]
        print_json({"conversation_id": conversation, "runs": runs})
        return
    print_text(f"Conversation {conversation}")
    for index, root in enumerate(roots):
        _draw(root, states, conversation, before="", is_last=index == len(roots) - 1)


async def _grown(conversation: str, workspace: str) -> tuple[list[_Node], dict[str, str]]:
    settings = current_settings()
    async with opened_store(settings, workspace) as store:
        runs = await store.list_runs(conversation_id=conversation)
        if not runs:
            message = (
                f"workspace {workspace!r} of database {settings.mongodb_database!r} has no "
                f"conversation {conversation!r}; `perdure runs` shows that of each run"
            )
            raise NotFoundError(message)
        roots = await _roots(store, runs)
    nodes = [node for root in roots for node in root.walk()]
    states = await joined_states(settings, [node.run for node in nodes])
    return roots, {node.run.run_id: state for node, state in zip(nodes, states, strict=True)}


async def _roots(store: "StepStore", runs: "list[RunRecord]") -> list[_Node]:
    """The runs that hang under no other one here, each with all that hangs under it."""
    nodes = {run.run_id: _Node(run=run, relation="root") for run in runs}
    waiting = list(nodes.values())
    while waiting:
        found = await asyncio.gather(*(_related(store, each.run.run_id) for each in waiting))
        waiting = list[_Node]()
        for run in (run for related in found for run in related):
            if run.run_id not in nodes:
                nodes[run.run_id] = _Node(run=run, relation="root")
                waiting.append(nodes[run.run_id])
    roots: list[_Node] = []
    for node in sorted(nodes.values(), key=lambda each: (each.run.started_at, each.run.run_id)):
        node.relation, origin = _origin(node.run)
        above = nodes.get(origin) if origin else None
        if above is None:
            roots.append(node)
        else:
            above.children.append(node)
    return roots


async def _related(store: "StepStore", run_id: str) -> "list[RunRecord]":
    lists = await asyncio.gather(
        store.list_runs(continued_from=run_id),
        store.list_runs(forked_from=run_id),
        store.list_runs(parent_run_id=run_id),
    )
    return [run for runs in lists for run in runs]


def _origin(run: "RunRecord") -> tuple[Relation, str | None]:
    if run.continued_from:
        return "continuation", run.continued_from
    if run.forked_from:
        return "fork", run.forked_from
    if run.parent_run_id:
        return "delegate", run.parent_run_id
    return "root", None


def _draw(
    node: _Node, states: dict[str, str], conversation: str, *, before: str, is_last: bool
) -> None:
    print_text(f"{before}{'└─ ' if is_last else '├─ '}{_line(node, states, conversation)}")
    below = before + ("   " if is_last else "│  ")
    for index, child in enumerate(node.children):
        last = index == len(node.children) - 1
        _draw(child, states, conversation, before=below, is_last=last)


def _line(node: _Node, states: dict[str, str], conversation: str) -> str:
    run = node.run
    relation, origin = _origin(run)
    words = {
        "root": "",
        "continuation": "continues",
        "fork": f"forks at snapshot {run.from_snapshot}",
        "delegate": "works for",
    }[relation]
    parts = [run.run_id, states[run.run_id], run.agent_name or "-", str(moment(run.started_at))]
    if run.ended_at:
        parts.append(f"{(run.ended_at - run.started_at).total_seconds():.3f} s")
    if words:
        parts.append(f"{words} {origin}")
    if run.conversation_id != conversation:
        parts.append(f"in conversation {run.conversation_id}")
    return "  ".join(parts)


def _document(node: _Node, states: dict[str, str]) -> dict[str, Any]:
    run = node.run
    return {
        "run_id": run.run_id,
        "relation": node.relation,
        "state": states[run.run_id],
        "agent_name": run.agent_name,
        "conversation_id": run.conversation_id,
        "parent_run_id": run.parent_run_id,
        "continued_from": run.continued_from,
        "forked_from": run.forked_from,
        "from_snapshot": run.from_snapshot,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "children": [_document(child, states) for child in node.children],
    }
