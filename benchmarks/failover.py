"""Servers that go away under load: that nothing is lost or doubled, and how long runs pause."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from temporalio.client import WorkflowHandle

from benchmarks.bench import Bench
from benchmarks.evidence import evidence_of
from benchmarks.figures import Figure
from benchmarks.place import Place, open_place
from benchmarks.replica_set import ReplicaSet
from benchmarks.scripted import Plan, make_agent
from cli.binaries import find_mongod, find_temporal
from cli.output import note
from cli.processes import LocalServerError
from cli.servers import MongoServer, TemporalServer, free_port
from client import connect
from settings import Settings
from workflows.agent_run import AgentRunWorkflow
from workflows.durable import durable
from workflows.names import SEARCH_ATTRIBUTES

AGENT = "steady"
AGENTS = "benchmarks.failover:steady"

AT_A_TIME = 8

STEP_SECONDS = 0.2
"""Of a tool, so that a run is in a tool, in a model request or in a commit when a server goes."""

PLAN = Plan(steps=25, size_bytes=2000)

OUTAGE = timedelta(minutes=5)
QUICK_OUTAGE = timedelta(seconds=30)

TEMPORAL_AWAY = timedelta(seconds=5)

GOES_ON_WITHIN = 5.0
"""Seconds from MongoDB's return until the slowest run has written again."""

MOVES_WITHIN = timedelta(minutes=2)
"""Of runs whose servers are there: what was in flight has to time out, and is tried again."""

BETWEEN_LOOKS = 0.2
"""Seconds; the precision of what is measured here."""

steady = make_agent(AGENT, durable(), step_seconds=STEP_SECONDS)

Handles = Sequence[WorkflowHandle[AgentRunWorkflow, object]]


@dataclass(frozen=True, kw_only=True)
class Disturbed:
    """What a load went through.

    Attributes:
        pause: seconds of the longest pause of a run, between two of its events.
        usual: the same of a run that nothing disturbed.
        differing: of `items` (events, snapshots, effects, messages) lost, doubled or changed.
        goes_on: seconds from the return of what was away until each run has written again.
    """

    runs: int
    items: int
    differing: int
    pause: float
    usual: float
    goes_on: float


@dataclass(frozen=True, kw_only=True)
class Load:
    """Runs at a time on one worker process, and how far they have come."""

    place: Place
    handles: Handles
    _noted: list[int] = field(default_factory=list[int])

    async def moved(self, *, within: timedelta) -> None:
        """Return when each run has written since `note` was called, or since it was started.

        Raises:
            LocalServerError: one has not; says what each of those waits for.
        """
        try:
            async with asyncio.timeout(within.total_seconds()):
                while await self._standing():  # noqa: ASYNC110 - other processes tell no event
                    await asyncio.sleep(BETWEEN_LOOKS)
        except TimeoutError:
            words = [f"{each.id}: {await _doing(each)}" for each in await self._standing()]
            message = f"Runs that have not moved within {within}: {'; '.join(words)}"
            raise LocalServerError(message) from None

    async def _standing(self) -> Handles:
        counts = await self._counts()
        noted = self._noted or [0] * len(counts)
        pairs = zip(self.handles, counts, noted, strict=True)
        still = [handle for handle, now, then in pairs if now <= then]
        return [each for each in still if not await self._has_ended(each.id)]

    async def note(self) -> None:
        """Remember how far the runs have come."""
        self._noted[:] = await self._counts()

    async def _counts(self) -> list[int]:
        events = [self.place.store.list_events(run_id=each.id) for each in self.handles]
        return [len(each) for each in await asyncio.gather(*events)]

    async def _has_ended(self, run_id: str) -> bool:
        run = await self.place.store.get_run(run_id=run_id)
        return run is not None and run.ended_at is not None


async def disturb(
    place: Place, disturbance: Callable[[], Awaitable[None]], *, plan: Plan = PLAN
) -> Disturbed:
    """Run `AT_A_TIME` runs, disturb them in the middle, wait for their ends and look at them.

    Args:
        place: with a worker that serves `AGENT`.
        disturbance: returns when everything is back; the store has to answer then.
        plan: of each run.
    """
    handles = [await place.start(AGENT, plan) for _ in range(AT_A_TIME)]
    load = Load(place=place, handles=handles)
    await load.moved(within=MOVES_WITHIN)
    await disturbance()
    back = monotonic()
    await load.note()
    await load.moved(within=MOVES_WITHIN)
    goes_on = monotonic() - back
    await asyncio.gather(*(each.result() for each in handles))
    undisturbed = await place.start(AGENT, plan)
    await undisturbed.result()
    expected = await evidence_of(place.store, undisturbed.id)
    found = [await evidence_of(place.store, each.id) for each in handles]
    return Disturbed(
        runs=len(handles),
        items=len(expected) * len(handles),
        differing=sum(_difference(each, expected) for each in found),
        pause=max([await _longest_pause(place, each.id) for each in handles]),
        usual=await _longest_pause(place, undisturbed.id),
        goes_on=goes_on,
    )


async def _doing(handle: WorkflowHandle[AgentRunWorkflow, object]) -> str:
    described = await handle.describe()
    found = [
        f"{each.activity_type.name}, attempt {each.attempt}: {each.last_failure.message}"
        for each in described.raw_description.pending_activities
    ]
    return ", ".join(found) or f"no activity, {described.history_length} events"


def _difference(found: Sequence[str], expected: Sequence[str]) -> int:
    return sum(a != b for a, b in zip(found, expected, strict=False)) + abs(
        len(found) - len(expected)
    )


async def _longest_pause(place: Place, run_id: str) -> float:
    times = [each.timestamp for each in await place.store.list_events(run_id=run_id)]
    return max((later - earlier).total_seconds() for earlier, later in pairwise(times))


async def kill_primary(members: ReplicaSet) -> None:
    """Kill the primary, wait for the election of another, bring the killed one back."""
    killed = await members.primary()
    await killed.kill()
    await members.primary()
    await killed.start()


async def restart_temporal(temporal: TemporalServer) -> None:
    """Kill the server and start it again `TEMPORAL_AWAY` later."""
    await temporal.kill()
    await asyncio.sleep(TEMPORAL_AWAY.total_seconds())
    await temporal.start()


async def mongodb_away(mongodb: MongoServer, outage: timedelta) -> None:
    """Kill the server and start it again after that time."""
    await mongodb.kill()
    await asyncio.sleep(outage.total_seconds())
    await mongodb.start()


@asynccontextmanager
async def temporal_and_place(
    home: Path, mongodb_uri: str
) -> AsyncGenerator[tuple[TemporalServer, Place]]:
    """A Temporal server of one's own, and one worker process that serves `AGENT`."""
    temporal = TemporalServer(
        find_temporal(), home, port=free_port(), search_attributes=SEARCH_ATTRIBUTES
    )
    try:
        await temporal.start()
        client = await connect(Settings(temporal_address=temporal.address))
        async with open_place(client, mongodb_uri, settings={"PERDURE_AGENTS": AGENTS}) as place:
            yield temporal, place
    finally:
        await temporal.kill()


async def measure_failover(bench: Bench) -> list[Figure]:
    """The primary killed, Temporal restarted, MongoDB away for five minutes."""
    outage = QUICK_OUTAGE if bench.is_quick else OUTAGE
    with TemporaryDirectory(prefix="perdure-failover-") as directory:
        home = Path(directory)
        members = ReplicaSet(home)
        try:
            await members.start()
            async with temporal_and_place(home, members.uri) as (temporal, place):
                note("    the primary of three is killed")
                killed = await disturb(place, lambda: kill_primary(members))
                note("    Temporal is restarted")
                restarted = await disturb(place, lambda: restart_temporal(temporal))
        finally:
            await members.kill()
        mongodb = MongoServer(find_mongod(copy_dir=home / "bin"), home / "one", port=free_port())
        try:
            await mongodb.start()
            async with temporal_and_place(home / "two", mongodb.uri) as (_, place):
                note(f"    MongoDB is away for {outage.total_seconds():.0f} s")
                away = await disturb(place, lambda: mongodb_away(mongodb, outage))
        finally:
            await mongodb.kill()
    seconds = f"{outage.total_seconds():.0f}"
    return [
        *_figures("the primary of three killed", killed),
        *_figures("Temporal killed, back after 5 s", restarted),
        *_figures(f"MongoDB away for {seconds} s", away),
        Figure(
            name=f"MongoDB away for {seconds} s: until each run has written again",
            unit="s",
            measured=away.goes_on,
            budget=GOES_ON_WITHIN,
        ),
    ]


def _figures(what: str, disturbed: Disturbed) -> list[Figure]:
    return [
        Figure(
            name=f"{what}: lost, doubled or changed",
            unit="",
            measured=disturbed.differing,
            budget=0,
            detail=f"of {disturbed.items} items of {disturbed.runs} runs, which all ended",
        ),
        Figure(
            name=f"{what}: longest pause of a run",
            unit="s",
            measured=disturbed.pause,
            detail=f"{disturbed.usual:.1f} s where nothing disturbs; each run had written again "
            f"{disturbed.goes_on:.1f} s after the return",
        ),
    ]
