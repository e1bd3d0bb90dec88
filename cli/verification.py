"""Whether the store tells the truth of a run: its histories replayed, its rows compared."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic_ai import Agent
from temporalio.client import Client, WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError

from activities.boundaries import CommitBoundariesRequest
from cli.histories import Chain, agent_of, chain_of, words_of
from stores.commits import Commit, CommitHead, CommitPosition
from stores.comparison import Comparison, Difference, Scope, compare
from stores.expected_rows import ExpectedRows, UnlikeCommitError
from stores.mongo.steps import MongoStepStore
from stores.operations import SaveSnapshot
from stores.recorded_digests import CommitDigest, compare_digests
from worker import build_replayer
from workflows.commit_capture import CommitCapture
from workflows.recorded_commits import RecordedCommit, RecordedExecution, recorded_execution

Verdict = Literal["EXACT", "GAP", "DIVERGED", "UNKNOWN"]

Basis = Literal["replay", "recorded digests", "rows alone"]
"""What was compared with: all that a replay makes, what the history itself holds of each commit, or
nothing but what rows say of themselves."""

REPLAYS = 5
"""Attempts of a replay that found no processor for two seconds, which the SDK calls a deadlock."""


class OtherCodeError(Exception):
    """This code does not make what the history holds; the message says where."""


@dataclass(kw_only=True)
class RunVerification:
    """What was found of one run.

    Attributes:
        why: the basis is not a replay.
        executions: of the run whose histories were read.
        is_whole: none of them is missing.
        repaired: rows that were put right; the rest is as after that.
    """

    run_id: str
    workspace_id: str
    verdict: Verdict
    basis: Basis
    comparison: Comparison
    why: str | None = None
    executions: int = 0
    is_whole: bool = True
    repaired: int = 0

    def as_document(self) -> dict[str, Any]:
        """What `--json` prints."""
        found = asdict(self.comparison)
        del found["mending"]
        return {
            "run_id": self.run_id,
            "workspace_id": self.workspace_id,
            "verdict": self.verdict,
            "basis": self.basis,
            "why": self.why,
            "executions": self.executions,
            "is_whole": self.is_whole,
            "repaired": self.repaired,
            **found,
        }


@dataclass(kw_only=True)
class _Replayed:
    """What the histories of a chain come to."""

    executions: list[RecordedExecution]
    expected: ExpectedRows | None = None
    why: str | None = None
    run_ids: list[str] = field(default_factory=list[str])


class Verifier:
    """Verifies runs with the agents of this code.

    Args:
        client: with the worker's data converter.
        store: of any workspace.
        agents: what the worker serves.
        workflows: a user's own workflow classes.
    """

    def __init__(
        self,
        client: Client,
        store: MongoStepStore,
        agents: Sequence[Agent[Any, Any]],
        *,
        workflows: Iterable[type] = (),
    ) -> None:
        self.client = client
        self._converter: DataConverter = client.data_converter
        self._store = store
        self._served = {str(agent.name) for agent in agents}
        self._capture = CommitCapture()
        self._began_at = datetime.now(UTC)  # noqa: TID251 - outside workflow code
        self._replayer = build_replayer(
            agents, workflows=workflows, converter=self._converter, interceptors=[self._capture]
        )

    async def verify(
        self, workflow_id: str, *, is_repairing: bool = False
    ) -> list[RunVerification]:
        """Compare every run of a workflow with the store; of `agent_run` it is one.

        Repeats: reads only, unless it repairs; a second repair finds nothing.

        Args:
            workflow_id: of the workflow; the run's id, for `agent_run`.
            is_repairing: write what is missing or different, where it was replayed.

        Raises:
            StoreUnavailableError: a server is away, or a row changed while it was repaired.
        """
        chain = await chain_of(self.client, workflow_id)
        if not chain.histories:
            return await self._of_rows(workflow_id)
        replayed = await self._replayed(chain)
        found = [await self._of_run(run_id, chain, replayed) for run_id in replayed.run_ids]
        if not is_repairing or replayed.expected is None:
            return found
        return [await self._repaired(each, chain, replayed) for each in found]

    async def _of_rows(self, run_id: str) -> list[RunVerification]:
        stored = await self._store.rows.read(run_id)
        if stored.run is None:
            return []
        scope = Scope(newest={}, is_whole=False)
        comparison = compare_digests(run_id, stored, (), scope)
        return [
            RunVerification(
                run_id=run_id,
                workspace_id=self._store.workspace_id,
                verdict=_verdict(comparison) if comparison.differences else "UNKNOWN",
                basis="rows alone",
                comparison=comparison,
                why="Temporal has no history of it: the run was imported, or made outside a "
                "workflow, inside another one or in an activity, or the history is gone after its "
                "retention time",
                is_whole=False,
            )
        ]

    # Replaying

    async def _replayed(self, chain: Chain) -> _Replayed:
        executions = [await recorded_execution(each, self._converter) for each in chain.histories]
        result = _Replayed(executions=executions)
        result.run_ids = list(
            dict.fromkeys(
                span.run_id
                for each in executions
                for commit in each.commits.values()
                for span in commit.result.spans
            )
        )
        try:
            expected: ExpectedRows | None = None
            for history, execution in zip(chain.histories, executions, strict=True):
                commits = await self._commits_of(history, execution)
                for number in sorted(commits):
                    request = commits[number]
                    expected = expected or ExpectedRows(workspace_id=request.workspace_id)
                    await self._take(expected, request, execution.commits[number])
            result.expected = expected
        except (OtherCodeError, UnlikeCommitError) as error:
            result.why = str(error)
        return result

    async def _commits_of(
        self, history: WorkflowHistory, execution: RecordedExecution
    ) -> dict[int, CommitBoundariesRequest]:
        """What each commit of the history held.

        Raises:
            OtherCodeError: this code takes another path.
        """
        await self._check_agent(history)
        failure = await self._replay(history)
        if failure is not None:
            message = f"this code does not replay the history: {words_of(failure)}"
            raise OtherCodeError(message)
        commits = self._capture.commits
        absent = sorted(execution.commits.keys() - commits.keys())
        if absent:
            message = f"this code does not make commit {absent[0]} of the history"
            raise OtherCodeError(message)
        return {number: commits[number] for number in execution.commits}

    async def _replay(self, history: WorkflowHistory) -> Exception | None:
        """Why it fails; `None` when it does not."""
        failure: Exception | None = None
        for _ in range(REPLAYS):
            self._capture.begin()
            self._began_at = datetime.now(UTC)  # noqa: TID251 - outside workflow code
            done = await self._replayer.replay_workflow(history, raise_on_replay_failure=False)
            failure = done.replay_failure
            if "deadlock" not in str(failure):
                break
            await asyncio.sleep(1)  # noqa: TID251 - for a processor
        return failure

    async def _check_agent(self, history: WorkflowHistory) -> None:
        try:
            agent = await agent_of(history, self._converter)
        except ApplicationError as error:
            message = f"the run's input does not fit this code: {error.message}"
            raise OtherCodeError(message) from error
        if agent is not None and agent not in self._served:
            message = (
                f"the run's agent {agent!r} is not on this code, which has "
                f"{', '.join(sorted(self._served)) or 'none'}"
            )
            raise OtherCodeError(message)

    async def _take(
        self, expected: ExpectedRows, request: CommitBoundariesRequest, recorded: RecordedCommit
    ) -> None:
        result = recorded.result
        if result.verdict in {"stale", "conflict"}:
            return
        group = self._as_received(request)
        position = CommitPosition(
            execution_id=group.execution_id,
            branch=recorded.branch,
            branch_time=group.queued_at,
            number=group.number,
            history_length=group.history_length,
            queued_at=group.queued_at,
        )
        ineffective = {"refused", "suppressed"} if result.verdict != "suppress" else {"refused"}
        commit = Commit(operations=group.operations, now=group.queued_at, position=position)
        await expected.take(
            self._store.redaction.commit(commit),  # as the store did with what it was given
            digest=result.digest,
            left_out=[e.index for e in result.outcomes if e.disposition in ineffective],
        )

    def _as_received(self, request: CommitBoundariesRequest) -> CommitBoundariesRequest:
        """The request as its activity got it: through JSON, with times from when it was made.

        The core reads the clock for the times of its messages, and has read it again just now.
        """
        converter = self._converter.payload_converter
        group: CommitBoundariesRequest = converter.from_payload(
            converter.to_payload(request), CommitBoundariesRequest
        )
        for operation in group.operations:
            for entry in operation.entries if isinstance(operation, SaveSnapshot) else ():
                for each in (entry.message, *entry.message.parts):
                    time = getattr(each, "timestamp", None)
                    if isinstance(time, datetime) and time >= self._began_at:
                        setattr(each, "timestamp", group.queued_at)  # noqa: B010 - of several types
        return group

    # Comparing

    async def _of_run(self, run_id: str, chain: Chain, replayed: _Replayed) -> RunVerification:
        store = self._store
        if replayed.expected is not None:
            store = store.for_workspace(replayed.expected.workspace_id)
        elif replayed.executions:
            store = store.for_workspace(await self._workspace_of(chain.histories[0]))
        newest = replayed.executions[-1]
        head = await store.find_commit_head(execution_id=newest.execution_id)
        stored = await store.rows.read(run_id)
        scope = _scope(replayed.executions, is_whole=chain.is_whole)
        if replayed.expected is not None:
            comparison = compare(run_id, replayed.expected.rows_of(run_id), stored, scope)
        else:
            commits = [*_digests(run_id, replayed.executions)]
            comparison = compare_digests(run_id, stored, commits, scope)
        comparison.differences += _of_head(run_id, head, newest)
        return RunVerification(
            run_id=run_id,
            workspace_id=store.workspace_id,
            verdict=_verdict(comparison),
            basis="replay" if replayed.expected is not None else "recorded digests",
            comparison=comparison,
            why=replayed.why,
            executions=len(chain.histories),
            is_whole=chain.is_whole,
        )

    async def _workspace_of(self, history: WorkflowHistory) -> str:
        """The workspace that an `agent_run` was started in; the store's for others."""
        started = history.events[0].workflow_execution_started_event_attributes
        try:
            (fields,) = await self._converter.decode(started.input.payloads, [dict[str, Any]])
        except (ValueError, ApplicationError):
            return self._store.workspace_id
        return str(fields.get("workspace_id", self._store.workspace_id))

    async def _repaired(
        self, found: RunVerification, chain: Chain, replayed: _Replayed
    ) -> RunVerification:
        mending = found.comparison.mending
        expected = replayed.expected
        if expected and any(e.boundary == "commit_head" for e in found.comparison.differences):
            execution_id = replayed.executions[-1].execution_id
            head = await expected.find_commit_head(execution_id=execution_id)
            mending = replace(mending, head=head)
        if not mending.count:
            return found
        await self._store.for_workspace(found.workspace_id).rows.mend(found.run_id, mending)
        after = await self._of_run(found.run_id, chain, replayed)
        return replace(after, repaired=mending.count)


def _verdict(comparison: Comparison) -> Verdict:
    kinds = {each.kind for each in comparison.differences}
    if "diverged" in kinds:
        return "DIVERGED"
    return "GAP" if kinds else "EXACT"


def _scope(executions: Sequence[RecordedExecution], *, is_whole: bool) -> Scope:
    newest: dict[str, int] = {}
    for execution in executions:
        for number, commit in execution.commits.items():
            newest[commit.branch] = max(number, newest.get(commit.branch, 0))
        newest.setdefault(execution.branch, 0)
    last = executions[-1]
    return Scope(
        newest=newest,
        open_branch=None if last.is_settled else last.branch,
        is_whole=is_whole,
    )


def _digests(run_id: str, executions: Sequence[RecordedExecution]) -> Iterable[CommitDigest]:
    """The commits that hold something of the run."""
    for execution in executions:
        for number in sorted(execution.commits):
            commit = execution.commits[number]
            result = commit.result
            spans = {each.run_id: each for each in result.spans}
            if run_id not in spans or result.verdict in {"stale", "conflict"}:
                continue
            is_repeat = result.verdict == "suppress"
            changed = [e for e in result.outcomes if e.disposition in {"refused", "suppressed"}]
            yield CommitDigest(
                branch=commit.branch,
                number=number,
                digest=result.digest,
                first=spans[run_id].first,
                last=spans[run_id].last,
                is_plain=len(spans) == 1 and (is_repeat or not changed),
            )


def _of_head(
    run_id: str, head: CommitHead | None, execution: RecordedExecution
) -> list[Difference]:
    """Whether the execution's newest commit is what the store takes for it."""
    if not execution.is_settled or not execution.commits:
        return []
    number = max(execution.commits)
    digest = execution.commits[number].result.digest
    if head is not None and (head.number, head.digest) == (number, digest):
        return []
    what = "is missing" if head is None else f"is at commit {head.number}, or says something else"
    return [
        Difference(
            kind="gap" if head is None or head.number < number else "diverged",
            run_id=run_id,
            boundary="commit_head",
            key=execution.execution_id,
            what=what,
            number=number,
        )
    ]
