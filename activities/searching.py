"""Searching what conversations said: read only, journaled where a run asks.

A client may run it by itself, too (`Client.execute_activity`): the request then says for whom.
"""

from dataclasses import asdict

from pydantic import BaseModel, ConfigDict
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.errors import as_application_error
from stores.errors import StoreError
from stores.identifiers import DEFAULT_WORKSPACE
from stores.protocols import StepStore
from stores.search.analysis import AnalyzerName
from stores.search.answering import search_history
from stores.search.bm25 import Bm25
from stores.search.query import HistoryQuery, SearchAnswer, SearchScope
from stores.search.source import SnapshotHistorySource


class SearchHistoryRequest(BaseModel):
    """One search. Frozen: recorded histories hold it.

    Workspace and conversation come from the run that asks, or from a trusted client; `query` and
    `run_id` may come from a model.
    """

    model_config = ConfigDict(frozen=True)

    query: str
    workspace_id: str = DEFAULT_WORKSPACE
    conversation_id: str | None = None
    run_id: str | None = None
    scope: SearchScope = "conversation"
    max_matches: int = 10
    context_lines: int = 5
    bm25_k1: float = 1.5
    bm25_b: float = 0.75
    analyzer: AnalyzerName = "standard"
    excludes_own_calls: bool = True

    def as_query(self) -> HistoryQuery:
        """What the store is asked.

        Raises:
            ValueError: an option is out of range. Not retryable.
        """
        return HistoryQuery(
            text=self.query,
            conversation_id=self.conversation_id,
            run_id=self.run_id,
            scope=self.scope,
            max_matches=self.max_matches,
            context_lines=self.context_lines,
            bm25=Bm25(k1=self.bm25_k1, b=self.bm25_b),
            analyzer=self.analyzer,
            includes_own=not self.excludes_own_calls,
        )


class SearchHistoryMatch(BaseModel):
    """Where a match is; `index` is the message's number in its run's record."""

    run_id: str
    index: int
    score: float
    conversation_id: str | None = None


class SearchHistoryResult(BaseModel):
    """The answer as the model reads it, what it covers, and where its matches are."""

    text: str
    runs: int = 0
    messages: int = 0
    skipped: int = 0
    note: str | None = None
    matches: tuple[SearchHistoryMatch, ...] = ()

    @classmethod
    def of(cls, answer: SearchAnswer) -> "SearchHistoryResult":
        """The result of an answer; its excerpts are in the text."""
        return cls.model_validate(asdict(answer))


class SearchActivities:
    """The search over a store."""

    def __init__(self, store: StepStore) -> None:
        self._store = store

    @activity.defn(name="search_conversation_history")
    async def search_conversation_history(
        self, request: SearchHistoryRequest
    ) -> SearchHistoryResult:
        """Search the workspace that the request names. Reads only.

        Raises:
            ApplicationError: type `InvalidQueryError` when an option is out of range, else the
                store's error. Not retryable, unless the store is away.
        """
        try:
            query = request.as_query()
        except ValueError as error:
            raise ApplicationError(
                str(error), type="InvalidQueryError", non_retryable=True
            ) from error
        try:
            store = self._store.for_workspace(request.workspace_id)
            return SearchHistoryResult.of(await search_history(SnapshotHistorySource(store), query))
        except StoreError as error:
            raise as_application_error(error) from error
