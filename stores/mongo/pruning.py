"""Snapshots that a commit takes out of a run, where their number is bounded."""

from collections.abc import Sequence

from stores.commits import CommitHead
from stores.mongo.documents import SERVER_TIME, Document, snapshot_row
from stores.mongo.transactions import Transaction
from stores.preparing import PreparedCommit
from stores.retention import prunable
from stores.rows import SnapshotRow

_COMPARED = dict.fromkeys(
    ("workspace_id", "run_id", "branch", "number", "sequence", "state", "mark"), 1
)
"""What decides; a snapshot's ranges may be long, and do not."""


class Pruner:
    """Prunes in the transaction of a commit.

    A pruned snapshot stays as the row that holds its key. It keeps its ranges, and so its messages,
    until a sweep finds that nothing can go back there (see `stores.mongo.leftovers`).
    """

    def __init__(self, transaction: Transaction, *, bound: int) -> None:
        self._transaction = transaction
        self._bound = bound

    async def prune(
        self, added: Sequence[SnapshotRow], prepared: PreparedCommit, head: CommitHead | None
    ) -> None:
        """Take out what the retain set leaves out; before `added` is written.

        Args:
            added: the snapshots of the commit's plan.
            prepared: the commit.
            head: the commit head before it.
        """
        if not added:
            return
        stored = await self._live({row.run_id for row in added})
        pruned = [
            row.row_id
            for run_id, rows in stored.items()
            for row in prunable(
                rows,
                [row for row in added if row.run_id == run_id],
                bound=self._bound,
                prepared=prepared,
                head=head,
            )
        ]
        if pruned:
            change: Document = {"live": False, "mark": "pruned", "pruned_at": SERVER_TIME}
            await self._transaction.database["snapshots"].update_many(
                {"_id": {"$in": pruned}, "run_id": {"$in": sorted(stored)}},
                [{"$set": change}],
                session=self._transaction.session,
            )

    async def _live(self, run_ids: set[str]) -> dict[str, list[SnapshotRow]]:
        query: Document = {
            "workspace_id": self._transaction.workspace_id,
            "run_id": {"$in": sorted(run_ids)},
            "live": True,
        }
        stored: dict[str, list[SnapshotRow]] = {}
        cursor = self._transaction.database["snapshots"].find(
            query, _COMPARED, session=self._transaction.session
        )
        async for document in cursor:
            row = snapshot_row(document)
            stored.setdefault(row.run_id, []).append(row)
        return stored
