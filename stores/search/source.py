"""Where the corpus comes from: the runs, and of each run the record of its messages."""

from typing import Protocol, runtime_checkable

from pydantic_ai.messages import ModelMessage

from stores.records import ContinuableSnapshot, RunRecord, SnapshotSummary
from stores.search.replay import replayed


@runtime_checkable
class HistorySource(Protocol):
    """Runs and their messages. Whatever keeps histories can be searched by way of it.

    Scope is applied to the records: a source has to fill their `conversation_id`.
    """

    async def list_runs(self) -> list[RunRecord]:
        """All runs, by `started_at` ascending."""
        ...

    async def run_history(self, *, run_id: str) -> list[ModelMessage]:
        """What a run's messages were, those that a compaction took out included; unknown: empty.

        Summaries that a compaction wrote are no messages.
        """
        ...


@runtime_checkable
class CountingSource(HistorySource, Protocol):
    """A source that can say what it could not read."""

    async def read_run(self, *, run_id: str) -> tuple[list[ModelMessage], int]:
        """As `run_history`, with the number of snapshots that are there and cannot be read."""
        ...


@runtime_checkable
class SnapshotStore(Protocol):
    """What is read of a store of snapshots."""

    async def list_runs(
        self, *, parent_run_id: str | None = None, conversation_id: str | None = None
    ) -> list[RunRecord]:
        """All runs, by `started_at` ascending."""
        ...

    async def list_snapshots(self, *, run_id: str) -> list[ContinuableSnapshot]:
        """A run's snapshots in the order in which they were written."""
        ...


@runtime_checkable
class _SummarisingStore(Protocol):
    async def list_snapshot_summaries(self, *, run_id: str) -> list[SnapshotSummary]: ...


class SnapshotHistorySource:
    """The histories that a step store holds, each run's put together from its snapshots.

    Args:
        store: the one that `StepPersistence` writes to.

    Raises:
        TypeError: the store cannot list its runs, or their snapshots.
    """

    def __init__(self, store: SnapshotStore) -> None:
        if not isinstance(store, SnapshotStore):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
            message = (
                f"SnapshotHistorySource cannot search {type(store).__name__}: it needs a store "
                "with list_runs and list_snapshots, as each of Perdure's has"
            )
            raise TypeError(message)
        self.store = store

    async def list_runs(self) -> list[RunRecord]:
        """See `HistorySource.list_runs`."""
        return await self.store.list_runs()

    async def run_history(self, *, run_id: str) -> list[ModelMessage]:
        """See `HistorySource.run_history`."""
        return replayed(await self.store.list_snapshots(run_id=run_id))

    async def read_run(self, *, run_id: str) -> tuple[list[ModelMessage], int]:
        """See `CountingSource.read_run`."""
        snapshots = await self.store.list_snapshots(run_id=run_id)
        unreadable = 0
        if isinstance(self.store, _SummarisingStore):
            listed = await self.store.list_snapshot_summaries(run_id=run_id)
            unreadable = max(0, len(listed) - len(snapshots))
        return replayed(snapshots), unreadable

    def __eq__(self, other: object) -> bool:
        """Two sources over one store are the same."""
        return isinstance(other, SnapshotHistorySource) and other.store is self.store

    __hash__ = None  # type: ignore[assignment]
