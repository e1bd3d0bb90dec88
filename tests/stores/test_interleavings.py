"""Lost tasks, retries, late writes and resets in any order leave what the surviving path says.

Message texts are compared, stamps are not: what a lost task has put on stays until the next save.
"""

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stores.commits import Commit
from stores.errors import IdempotencyConflictError
from stores.memory import InMemoryStepStore
from stores.mongo.steps import MongoStepStore
from stores.operations import Operation
from stores.protocols import StepStore
from tests.stores.writer import Execution, RunScript, at, request, text_of

Step = tuple[str, int]
"""What happens, and which of two contents it has."""

STEPS = st.tuples(st.sampled_from(["event", "start", "finish", "save", "end"]), st.integers(0, 1))
COMMITS = st.lists(STEPS, min_size=1, max_size=3)
ATTEMPTS = st.lists(COMMITS, min_size=1, max_size=3)


@dataclass
class Path:
    """A path through the run: what was asked of the store on it, and what must be read of it."""

    script: RunScript = field(default_factory=RunScript)
    execution: Execution = field(default_factory=Execution)
    events: list[tuple[str, str | None]] = field(default_factory=list[tuple[str, str | None]])
    effects: dict[int, str] = field(default_factory=dict[int, str])
    histories: list[int] = field(default_factory=list[int])
    state: str = "running"

    def operations(self, steps: list[Step]) -> tuple[Operation, ...]:
        return tuple(each for kind, content in steps for each in self._operations(kind, content))

    def _operations(self, kind: str, content: int) -> list[Operation]:
        number = len(self.events)
        match kind:
            case "event":
                name = f"tool-{content}"
                self.events.append(("model_request_started", name))
                return [self.script.event("model_request_started", number, tool_name=name)]
            case "end":
                event = ("run_completed", "run_failed")[content]
                self.state = ("completed", "failed")[content]
                self.events.append((event, None))
                return [self.script.event(event, number)]
            case "start":
                effect = len(self.effects)
                self.effects[effect] = "started"
                return [self.script.started(effect, arguments=f'"{content}"')]
            case "finish":
                status = ("completed", "unknown")[content]
                open_effects = [key for key, is_now in self.effects.items() if is_now == "started"]
                for effect in open_effects[:1]:
                    self.effects[effect] = status
                    return [self.script.finished(effect, status=status)]
                return self._operations("event", content)
            case _:
                messages = self.script.messages
                if messages:
                    messages[-1] = request(text_of(messages[-1]), run_id="run-1")
                messages.append(request(f"message {len(messages)}, {content}"))
                self.histories.append(len(messages))
                return [self.script.snapshot(number, max(len(messages) - 2, 0))]


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[Commit], Path]:
    """Commits in the order in which they reach the store, and the path that survives."""
    sent: list[Commit] = []
    late: list[Commit] = []
    path = Path()
    sent.append(path.execution.commit(path.script.register(), *path.operations([("event", 0)])))
    checkpoints = [copy.deepcopy(path)]
    for task in range(draw(st.integers(1, 4))):
        if draw(st.integers(0, 5)) == 0:
            # A reset: a later branch of the same execution goes on from an earlier task.
            del checkpoints[draw(st.integers(1, len(checkpoints))) :]
            path = copy.deepcopy(checkpoints[-1])
            path.execution.branch = f"branch-{task + 2}"
            path.execution.branch_time = at(1000 * (task + 1))
        attempts = draw(st.lists(ATTEMPTS, min_size=1, max_size=3))
        begin = copy.deepcopy(path)
        for attempt, commits in enumerate(attempts):
            path = copy.deepcopy(begin)
            path.execution.next_task()
            path.execution.queued_seconds = 100 * task + attempt
            is_lost = attempt < len(attempts) - 1
            count = draw(st.integers(0, len(commits))) if is_lost else len(commits)
            for index, steps in enumerate(commits[: count + 1]):
                now = len(sent) + len(late)
                commit = path.execution.commit(*path.operations(steps), now=now)
                (sent if index < count else late).append(commit)
                if draw(st.integers(0, 2)) == 0:
                    sent.append(draw(st.sampled_from(sent + late)))
        checkpoints.append(copy.deepcopy(path))
    return sent, path


async def deliver(stores: Sequence[StepStore], commits: list[Commit]) -> list[str]:
    """The verdicts of the stores, each of which takes two commits in turn.

    The surviving path never meets a conflict, so one is an answer like others.
    """
    verdicts: list[str] = []
    for index, commit in enumerate(commits):
        try:
            result = await stores[index // 2 % len(stores)].commit(commit)
        except IdempotencyConflictError:
            verdicts.append("conflict")
        else:
            assert result.refused() == ()
            verdicts.append(result.verdict)
    return verdicts


async def read(store: StepStore, run_id: str, execution_id: str) -> dict[str, object]:
    return {
        "run": await store.get_run(run_id=run_id),
        "events": await store.list_events(run_id=run_id),
        "effects": await store.list_tool_effects(run_id=run_id),
        "unresolved": await store.list_unresolved_tool_effects(run_id=run_id),
        "snapshots": await store.list_snapshots(run_id=run_id),
        "latest": await store.latest_snapshot(run_id=run_id),
        "head": await store.find_commit_head(execution_id=execution_id),
    }


def _renamed(commit: Commit, name: str) -> Commit:
    assert commit.position is not None
    operations = (each.model_copy(update={"run_id": name}) for each in commit.operations)
    position = replace(commit.position, execution_id=name)
    return replace(commit, operations=tuple(operations), position=position)


@given(deliveries())
@settings(max_examples=100, deadline=None)
def test_memory_holds_what_the_surviving_path_says(case: tuple[list[Commit], Path]) -> None:
    commits, path = case

    async def check() -> None:
        store = InMemoryStepStore()
        await deliver([store], commits)
        events = await store.list_events(run_id="run-1")
        assert [(each.kind, each.tool_name) for each in events] == path.events
        effects = await store.list_tool_effects(run_id="run-1")
        assert [each.status for each in effects] == list(path.effects.values())
        snapshots = await store.list_snapshots(run_id="run-1")
        texts = [text_of(each) for each in path.script.messages]
        assert [[text_of(each) for each in one.messages] for one in snapshots] == [
            texts[:count] for count in path.histories
        ]
        run = await store.get_run(run_id="run-1")
        assert run is not None
        assert run.state == path.state
        head = await store.find_commit_head(execution_id="execution-1")
        assert head is not None
        assert (head.number, head.branch) == (path.execution.number, path.execution.branch)
        assert run.branches[-1].branch == path.execution.branch

    asyncio.run(check())


@pytest.mark.integration
def test_mongodb_answers_and_holds_the_same_as_memory(
    mongodb_uri: str, prepared_database: str
) -> None:
    @given(deliveries())
    @settings(
        max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
    )
    def check(case: tuple[list[Commit], Path]) -> None:
        asyncio.run(compare(case[0]))

    async def compare(commits: list[Commit]) -> None:
        name = uuid4().hex  # run ids and executions are unique in a database
        renamed = [_renamed(commit, name) for commit in commits]
        memory = InMemoryStepStore()
        # As from two workers: what one remembers of the execution is outdated by the other.
        workers = [MongoStepStore(db_url=mongodb_uri, database=prepared_database) for _ in "ab"]
        try:
            assert await deliver(workers, renamed) == await deliver([memory], renamed)
            assert await read(workers[0], name, name) == await read(memory, name, name)
        finally:
            for worker in workers:
                await worker.aclose()

    check()
