"""What a store promises. Implementations document only what differs."""

from typing import TYPE_CHECKING, Protocol

from stores.attempts import AttemptStore
from stores.commits import Commit, CommitHead, CommitResult
from stores.conversations import ConversationStore
from stores.keyword.queries import KeywordReads
from stores.records import (
    ContinuableSnapshot,
    RunPage,
    RunRecord,
    RunState,
    SnapshotSummary,
    StepEvent,
    ToolEffectRecord,
)
from stores.streaming import StreamStore

if TYPE_CHECKING:
    from stores.redaction import Redaction


class StepStore(Protocol):
    """Runs, events, snapshots and tool effects of one workspace.

    `commit` is the one write path; the seed's single methods are commits of one operation without a
    position. A store object is bound to one workspace and sees no other; a run id is unique over
    all of them. Reads give what is live: rows of a lost workflow task or behind a reset are kept,
    marked, and left out. Order comes from a run's own sequence, never from time.

    Errors of every method: `StoreUnavailableError` (retryable) when no server could be reached.
    """

    @property
    def workspace_id(self) -> str:
        """The workspace that this object is bound to."""
        ...

    @property
    def redaction(self) -> "Redaction":
        """What it masks in all that it is given; see `stores.redaction`."""
        ...

    @property
    def attempts(self) -> AttemptStore:
        """The attempts of tool calls in this workspace, which a worker's activities record."""
        ...

    @property
    def streams(self) -> StreamStore:
        """The live text of this workspace's runs."""
        ...

    @property
    def conversations(self) -> ConversationStore:
        """The conversations of this workspace."""
        ...

    @property
    def keywords(self) -> KeywordReads:
        """Keyword search over the conversations of all workspaces."""
        ...

    def for_workspace(self, workspace_id: str) -> "StepStore":
        """The same store bound to another workspace; shares the connection.

        Raises:
            InvalidIdentifierError: the id is malformed.
        """
        ...

    async def initialise(self) -> list[str]:
        """Make what the store needs before its first use: a line for each thing that was done.

        Repeats: what is there already is left alone; what differs from what this version needs is
        repaired.

        Raises:
            StoreConfigurationError: it may not be made here; the text says what is missing.
        """
        ...

    async def verify(self) -> None:
        """Return when the store is fit for use; changes nothing.

        Raises:
            StoreConfigurationError: it is not; the text names each problem and the step that
                repairs it. Not retryable.
        """
        ...

    async def commit(self, commit: Commit) -> CommitResult:
        """Write a group of operations in one transaction, or say why not.

        Shape: `outcomes` of the result name each operation that was not simply applied.
        Repeats: the same commit again is suppressed; first rows and their times stay. A commit that
        comes too late is `stale`: nothing is written, and the head counts it. An operation whose
        run id belongs to another registration is refused with all others of that run; the rest go
        on.

        Raises:
            IdempotencyConflictError: the head's number and fence came with another content. Not
                retryable. (One key with other content refuses that operation alone.)
        """
        ...

    async def find_commit_head(self, *, execution_id: str) -> CommitHead | None:
        """The newest commit of an execution, `None` when it has none."""
        ...

    async def register_run(self, record: RunRecord) -> None:
        """Claim `record.run_id`.

        Repeats: again with the same `registration_id` changes nothing, the first `started_at`
        stays.

        Raises:
            RunIdTakenError: (a `ValueError`) another registration has the id. Not retryable.
            AlreadyContinuedError: another run continues `record.continued_from`. Not retryable.
            InvalidIdentifierError: an id is malformed. Nothing is written.
        """
        ...

    async def get_run(self, *, run_id: str) -> RunRecord | None:
        """The run, `None` when this workspace has none of that id."""
        ...

    async def list_runs(
        self,
        *,
        parent_run_id: str | None = None,
        conversation_id: str | None = None,
        continued_from: str | None = None,
        forked_from: str | None = None,
    ) -> list[RunRecord]:
        """Runs that match all given filters, by `started_at`, then `run_id`, ascending."""
        ...

    async def page_runs(
        self,
        *,
        limit: int = 50,
        after: str | None = None,
        conversation_id: str | None = None,
        parent_run_id: str | None = None,
        agent_name: str | None = None,
        state: RunState | None = None,
    ) -> RunPage:
        """Runs that match all given filters, newest first.

        Args:
            limit: 1 to 1000.
            after: `RunPage.after` of the page before.

        Raises:
            InvalidCursorError: `after` was not made by this method. Not retryable.
        """
        ...

    async def append_event(self, event: StepEvent) -> None:
        """Append an event.

        Repeats: a key that was applied is suppressed; `idempotency_key=None` always appends.

        Raises:
            IdempotencyConflictError: the key was applied with other content. Not retryable.
        """
        ...

    async def list_events(self, *, run_id: str, after: int = -1) -> list[StepEvent]:
        """The run's events in order, those behind sequence `after`; empty when there are none."""
        ...

    async def save_snapshot(self, snapshot: ContinuableSnapshot) -> None:
        """Save a history. Each message is stored once, however many snapshots hold it.

        Repeats: as `append_event`.

        Raises:
            IdempotencyConflictError: the key was applied with other content. Not retryable.
        """
        ...

    async def latest_snapshot(
        self, *, run_id: str, include_interrupted: bool = False
    ) -> ContinuableSnapshot | None:
        """The newest `complete` snapshot, or the newest of any state; `None` when there is none.

        Raises:
            DamagedSnapshotError: it exists and cannot be put together. Not retryable.
        """
        ...

    async def find_snapshot(self, *, run_id: str, sequence: int) -> ContinuableSnapshot | None:
        """The snapshot at that place of the run's order, `None` when there is none.

        Raises:
            DamagedSnapshotError: it exists and cannot be put together. Not retryable.
        """
        ...

    async def list_snapshots(self, *, run_id: str) -> list[ContinuableSnapshot]:
        """The run's snapshots with messages, in order; damaged ones are left out and logged."""
        ...

    async def list_snapshot_summaries(self, *, run_id: str) -> list[SnapshotSummary]:
        """The run's snapshots without their messages, in order; loads no message."""
        ...

    async def record_tool_effect(self, record: ToolEffectRecord) -> None:
        """Record a tool call's status. A status never goes back (a late `started` changes nothing).

        Raises:
            IdempotencyConflictError: a finish contradicts the recorded one. Not retryable.
        """
        ...

    async def annotate_tool_effect(
        self,
        *,
        run_id: str,
        effect_key: str,
        idempotency_key: str | None = None,
        effect_summary: str | None = None,
    ) -> None:
        """Add what a tool says of its effect to the effect of a call that is in flight.

        `None` leaves what is there, other values take its place. Quiet when there is no such
        effect, and when its outcome is known: then this comes too late.

        Args:
            effect_key: step and call index as `"2/0"`, or `call:` and the call id of an effect that
                was recorded without them.
        """
        ...

    async def get_tool_effect(self, *, run_id: str, tool_call_id: str) -> ToolEffectRecord | None:
        """The newest effect of the run with that call id, `None` when there is none."""
        ...

    async def list_tool_effects(self, *, run_id: str) -> list[ToolEffectRecord]:
        """The run's effects in order."""
        ...

    async def list_unresolved_tool_effects(
        self, *, run_id: str | None = None
    ) -> list[ToolEffectRecord]:
        """Effects `started` or `unknown`: of a run in order, or of the workspace, oldest first."""
        ...

    async def aclose(self) -> None:
        """Release what the store itself opened. Quiet when there is nothing, or a second time."""
        ...
