"""Many runs at once whose workers are killed at random moments."""

import asyncio
import random
import secrets
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from time import monotonic

from temporalio.client import WorkflowHandle

from cli.sweep.judging import Outcome, with_parked_call, without_marks
from cli.sweep.performing import (
    Undisturbed,
    answer_parked,
    calls_of,
    end_of,
    problems_of_history,
    run_ids_of,
    start_run,
    tool_of,
)
from cli.sweep.points import ROOT
from cli.sweep.report import all_well, print_outcomes, print_outcomes_json, tell
from cli.sweep.script import body_counts
from cli.sweep.stage import Lane, open_lanes, seen
from cli.sweep.sweeping import observe
from cli.sweep.traces import trail_of
from cli.sweep.workers import WorkerProcess
from stores.errors import StoreUnavailableError
from stores.faulty import FaultPlan

WORKERS = 2

LIFE = (0.5, 4.0)
"""Seconds that a worker works, besides its share; half a dozen tools and commits are in flight at
any time."""

SHARE_OF_WORK = 4
"""A worker works for so many times as long as its start took, and up to four seconds more."""

STARTS_WITHIN = timedelta(minutes=2)

LONGEST_RUN_S = 600


@dataclass(kw_only=True)
class RandomKills:
    """So many runs, `at_once` of them side by side, on workers that are killed now and then."""

    lane: Lane
    undisturbed: Undisturbed
    moments: random.Random
    directory: Path
    kills: int = 0
    workers: list[WorkerProcess] = field(default_factory=list[WorkerProcess])

    async def perform(self, runs: int, at_once: int) -> list[Outcome]:
        """The outcome of each run."""
        plan = FaultPlan(directory=self.directory)
        settings = self.lane.settings(f"random-{secrets.token_hex(4)}")
        self.workers = [WorkerProcess(settings=settings, plan=plan) for _ in range(WORKERS)]
        killing = [asyncio.create_task(self._restart(worker)) for worker in self.workers]
        slots = asyncio.Semaphore(at_once)
        outcomes: list[Outcome] = []

        async def perform(number: int) -> None:
            async with slots:
                outcomes.append(await self._run(number, settings.task_queue))
                tell(outcomes[-1], len(outcomes), runs)

        try:
            async with asyncio.TaskGroup() as performing:
                for number in range(runs):
                    performing.create_task(perform(number))
        finally:
            for each in killing:
                each.cancel()
            for worker in self.workers:
                worker.kill()
        return outcomes

    async def _restart(self, worker: WorkerProcess) -> None:
        """Start it again and again, and kill it at some moment of its work.

        It lives longer where it takes long to start, or on a busy machine none would come to work.
        """
        while True:
            began = monotonic()
            worker.start()
            await seen(lambda: worker.is_ready, within=STARTS_WITHIN, what="no worker started")
            life = self.moments.uniform(*LIFE) + SHARE_OF_WORK * (monotonic() - began)
            await asyncio.sleep(life)  # noqa: TID251 - the random moment
            worker.kill()
            self.kills += 1

    async def _run(self, number: int, task_queue: str) -> Outcome:
        began = monotonic()
        outcome = Outcome(point=f"run {number}", group="random", disturbance="kill", fired=1)
        run_id = f"random-{secrets.token_hex(8)}"
        handle = await start_run(self.lane.client, run_id, task_queue=task_queue)
        ending = asyncio.create_task(end_of(handle))
        parked = await self._settle(handle, ending, outcome)
        if not ending.done():
            outcome.astray.append(f"did not end within {LONGEST_RUN_S} s")
            ending.cancel()
            return outcome
        if ending.result() != self.undisturbed.output:
            outcome.astray.append(f"ended with {ending.result()!r}")
        await self._judge(run_id, parked, outcome)
        outcome.parked = ", ".join(sorted(parked)) or None
        outcome.seconds = round(monotonic() - began, 1)
        return outcome

    async def _settle(
        self,
        handle: WorkflowHandle[object, object],
        ending: "asyncio.Task[object]",
        outcome: Outcome,
    ) -> set[str]:
        """Answer each call that waits, once, until the run is over; which ones did."""
        parked: set[str] = set()
        deadline = monotonic() + LONGEST_RUN_S
        while not ending.done() and monotonic() < deadline:
            await asyncio.wait([ending], timeout=0.5)
            with suppress(StoreUnavailableError):
                rows = await self.lane.store.list_unresolved_tool_effects(run_id=handle.id)
                calls = {f"{e.step_index}/{e.call_index}" for e in rows if e.status == "unknown"}
                for call in calls - parked:
                    parked.add(call)
                    asyncio.create_task(_answer(handle, call, outcome))  # noqa: RUF006 - the run waits
        return parked

    async def _judge(self, run_id: str, parked: set[str], outcome: Outcome) -> None:
        store = self.lane.store
        ids = await run_ids_of(store, run_id)
        trails = {agent: without_marks(await trail_of(store, each)) for agent, each in ids.items()}
        expected = self.undisturbed.trails
        for call in parked:
            expected = with_parked_call(expected, ROOT, call)
        outcome.compare(trails, {agent: without_marks(each) for agent, each in expected.items()})
        for each in ids.values():
            outcome.divergent += await problems_of_history(self.lane, each)
        tools = {f"call-{step}-{index}": tool for step, index, tool in calls_of(ROOT)}
        outcome.count_bodies(body_counts(self.directory, run_id), tools)


async def _answer(handle: WorkflowHandle[object, object], call: str, outcome: Outcome) -> None:
    if refusal := await answer_parked(handle, call, tool_of(call)):
        outcome.astray.append(f"the decision on call {call} was refused: {refusal}")


async def kill_at_random(runs: int, *, at_once: int, seed: int, as_json: bool) -> bool:
    """Whether all runs ended as the undisturbed one."""
    with tempfile.TemporaryDirectory(prefix="perdure-chaos-", ignore_cleanup_errors=True) as home:
        async with open_lanes(Path(home), 1) as (lane,):
            undisturbed, _ = await observe(lane)
            kills = RandomKills(
                lane=lane,
                undisturbed=undisturbed,
                moments=random.Random(seed),  # noqa: S311 - no secret
                directory=Path(home),
            )
            outcomes = await kills.perform(runs, at_once)
    if as_json:
        print_outcomes_json(outcomes, seed=seed, kills=kills.kills)
    else:
        print_outcomes(outcomes)
        print(f"{kills.kills} workers were killed.")
    return all_well(outcomes)
