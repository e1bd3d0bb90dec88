"""After every point: `verify` over all of its runs."""

from collections.abc import Mapping

from cli.sweep.script import AGENTS
from cli.sweep.stage import Lane
from cli.verification import Verifier
from stores.mongo.steps import MongoStepStore

SHOWN = 3
"""Differences of one run: a report is for people."""


async def unlike_history(lane: Lane, run_ids: Mapping[str, str]) -> list[str]:
    """What the store holds of these runs, by agent, that is not as their histories have it."""
    if not isinstance(lane.store, MongoStepStore):
        message = (
            f"the sweep verifies rows in MongoDB, and its store is {type(lane.store).__name__}"
        )
        raise TypeError(message)
    verifier = Verifier(lane.client, lane.store, AGENTS)
    problems: list[str] = []
    for agent, run_id in run_ids.items():
        for found in await verifier.verify(run_id):
            if (found.verdict, found.basis) == ("EXACT", "replay"):
                continue
            places = [
                f"{each.kind} {each.boundary} {each.key} {each.what}"
                for each in found.comparison.differences[:SHOWN]
            ]
            told = "; ".join(places) or str(found.why)
            problems.append(f"verify of {agent} says {found.verdict} by {found.basis}: {told}")
    return problems
