"""The conversation-search capability: a tool that finds what a conversation ever said.

In a workflow the tool is an activity on the worker's store, so its answer is journaled and a replay
does not search again. Outside it reads the store.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic_ai import FunctionToolset
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import AgentDepsT, RunContext
from pydantic_ai.toolsets import AgentToolset
from temporalio import workflow

from activities.searching import SearchHistoryRequest, SearchHistoryResult
from stores.search.analysis import AnalyzerName
from stores.search.answering import search_history
from stores.search.query import SearchScope
from stores.search.rendering import TOOL_NAME
from stores.search.source import HistorySource, SnapshotHistorySource
from workflows import policies
from workflows.journal import find_journal
from workflows.lineage import current_scope, inherited_lineage
from workflows.names import CONVERSATION_SEARCH, SEARCH_ACTIVITY, SEARCH_TOOLSET
from workflows.persistence import StepPersistence

DESCRIPTION = """\
Search persisted conversation history: earlier turns of this conversation (including messages that \
context compaction dropped from the live context) and past runs reachable under the configured \
scope.

When the conversation is compacted, older messages are replaced by a summary in the active \
context, but the persisted step history keeps the originals. Use this tool to find specific \
details the live context no longer carries.

Results are ranked by relevance using BM25 -- rare terms and exact matches score higher. \
Multi-word queries search each word independently. Each result names the run it came from; pass \
`run_id` to search only one run, e.g. a run a compaction receipt references as its full \
transcript.

When to use:
- You need to recall exact details from earlier in the conversation
- The conversation summary or a compaction receipt lacks a detail you need
- You need specific code, file paths, or decisions from a past run

When NOT to use:
- The information is still in the current conversation context
- You need external or real-time information (use web tools instead)"""
"""The seed's, word for word."""

_CONVERSATION_NOTE = (
    "\n\nThis search covers only the current conversation; runs belonging to other conversations "
    "in the same store are not reachable."
)

_INSTRUCTIONS = (
    "A `search_conversation_history` tool can retrieve exact details from persisted history: "
    "earlier turns that context compaction has since dropped from the live context, and past "
    "runs {where}. Reach for it when the current context, or a compaction summary, lacks a "
    "detail you need."
)
_WHERE: dict[SearchScope, str] = {
    "conversation": "in the same conversation",
    "all": "persisted in the same store",
}


class ConversationSearchToolset(FunctionToolset[AgentDepsT]):
    """One tool, `search_conversation_history`.

    Args:
        source: what is searched outside a workflow; `None` means the store of the agent's
            `StepPersistence`. In a workflow it is the worker's store.
        scope: how far a search may reach, within its workspace.
        tool_id: the toolset's id.
        options: the other options of `ConversationSearch`.

    Raises:
        ValueError: an option is out of range.
    """

    def __init__(
        self,
        source: HistorySource | None = None,
        *,
        scope: SearchScope = "conversation",
        tool_id: str = SEARCH_TOOLSET,
        **options: Any,  # noqa: ANN401 - the fields of the request, checked by it
    ) -> None:
        super().__init__(id=tool_id)
        self._source = source
        self._request = SearchHistoryRequest(query="", scope=scope, **options)
        self._request.as_query()  # refuses what is out of range now, not in a run
        self.add_function(
            self.search_conversation_history,
            name=TOOL_NAME,
            description=DESCRIPTION + (_CONVERSATION_NOTE if scope == "conversation" else ""),
            # In a workflow it schedules its activity itself, and an answer may be asked for again.
            metadata={"temporal": False, "effect": "read"},
        )

    async def search_conversation_history(
        self, ctx: RunContext[AgentDepsT], query: str, run_id: str | None = None
    ) -> str:
        """Search persisted conversation history using BM25 ranking.

        Args:
            ctx: The active run context.
            query: Text to search for. Multi-word queries search each word independently -- rare
                terms score higher than common ones.
            run_id: Search only this run's history. Use it to resolve a run another tool or a
                compaction receipt referenced.
        """
        request = self._request.model_copy(
            update={
                "query": query,
                "run_id": run_id,
                "conversation_id": ctx.conversation_id,
                "workspace_id": _workspace(),
            }
        )
        if workflow.in_workflow():
            found: SearchHistoryResult = await workflow.execute_activity(
                SEARCH_ACTIVITY,
                request,
                result_type=SearchHistoryResult,
                start_to_close_timeout=policies.READ_TIMEOUT,
                retry_policy=policies.READ_RETRIES,
            )
            return found.text
        scope = current_scope.get()
        if self._source is None and scope is not None and scope.store is not None:
            return (await scope.store.search(request.as_query())).text
        return (await search_history(self._source or _source_of(ctx), request.as_query())).text


def _workspace() -> str:
    """The tenant of this code, told by whoever started it."""
    journal = find_journal() if workflow.in_workflow() else None
    if journal is not None:
        return journal.workspace_id
    scope = current_scope.get()
    lineage = scope.lineage if scope else inherited_lineage()
    return lineage.workspace_id if lineage else SearchHistoryRequest(query="").workspace_id


def _source_of(ctx: RunContext[Any]) -> HistorySource:
    """What the agent's own `StepPersistence` writes to.

    Raises:
        UserError: the agent has none.
    """
    found: list[StepPersistence[Any]] = []
    if ctx.agent is not None:
        ctx.agent.root_capability.apply(
            lambda each: found.append(each) if isinstance(each, StepPersistence) else None
        )
    if not found:
        message = (
            "ConversationSearch has nothing to search: give it a source, such as "
            "SnapshotHistorySource(store), or add StepPersistence to the agent"
        )
        raise UserError(message)
    return SnapshotHistorySource(found[0].outside_store)


@dataclass
class ConversationSearch(AbstractCapability[AgentDepsT]):
    """Lets the model search what the conversation said, also what a compaction took out.

    It stores nothing itself: it reads what `StepPersistence` has stored. In a workflow that is the
    worker's store, and a worker refuses an agent whose search has a source of its own.

    Args:
        source: what is searched outside a workflow, such as `SnapshotHistorySource(store)`; `None`
            means the store of the agent's `StepPersistence`.
        scope: `conversation` reaches the runs of the calling run's conversation, `all` every run of
            its workspace; unset is `conversation`.
        tool_id: id of the toolset.
        max_matches: most excerpts of an answer.
        context_lines: messages shown before and after each match.
        bm25_k1: how soon more of a term says no more.
        bm25_b: how much a long message is held against it, 0 to 1.
        add_instructions: tell the model in its instructions that there is the tool.
        analyzer: `standard`, or `regex` to rank as pydantic-ai-harness does.
        excludes_own_calls: leave out what earlier searches asked and answered.
        id: to address the instructions, and to tell two on one agent apart.

    Raises:
        ValueError: an option is out of range.
    """

    source: HistorySource | None = None
    scope: SearchScope | None = None
    tool_id: str = SEARCH_TOOLSET
    max_matches: int = 10
    context_lines: int = 5
    bm25_k1: float = 1.5
    bm25_b: float = 0.75
    add_instructions: bool = True
    analyzer: AnalyzerName = "standard"
    excludes_own_calls: bool = True
    id: str | None = field(default=CONVERSATION_SEARCH, kw_only=True)
    _toolset: ConversationSearchToolset[AgentDepsT] = field(init=False, repr=False, compare=False)
    """Always the same one: a run takes another object for a second toolset of one id."""

    def __post_init__(self) -> None:
        """Refuse what is out of range now, not in a run."""
        self._toolset = self._make_toolset()

    @property
    def effective_scope(self) -> SearchScope:
        """The scope that is applied."""
        return self.scope or "conversation"

    @classmethod
    def combine(
        cls, capabilities: Sequence[AbstractCapability[AgentDepsT]]
    ) -> AbstractCapability[AgentDepsT]:
        """Several under one id are one search stated twice.

        Raises:
            UserError: they differ: merged, one could reach further than it was given.
        """
        first, *others = capabilities
        differing = [
            each.name
            for each in fields(cls)
            if each.compare
            and any(getattr(other, each.name) != getattr(first, each.name) for other in others)
        ]
        if differing:
            message = (
                f"several ConversationSearch have the id {first.id!r} and differ in "
                f"{', '.join(differing)}. Make them equal, or give each an id of its own and wrap "
                "them in PrefixTools, since their tools have one name"
            )
            raise UserError(message)
        return first

    def get_toolset(self) -> AgentToolset[AgentDepsT] | None:
        """The toolset with the one tool."""
        return self._toolset

    def _make_toolset(self) -> ConversationSearchToolset[AgentDepsT]:
        return ConversationSearchToolset(
            self.source,
            scope=self.effective_scope,
            tool_id=self.tool_id,
            max_matches=self.max_matches,
            context_lines=self.context_lines,
            bm25_k1=self.bm25_k1,
            bm25_b=self.bm25_b,
            analyzer=self.analyzer,
            excludes_own_calls=self.excludes_own_calls,
        )

    def get_instructions(self) -> str | None:
        """A note that there is the tool, in words that fit the scope."""
        if not self.add_instructions:
            return None
        return _INSTRUCTIONS.format(where=_WHERE[self.effective_scope])
