"""The session-history capability: tools with which a model searches and reads conversations.

In a workflow each is an activity on the worker's store, so its answer is journaled and a replay
does not read again. Both read what the principal of the run may read at that moment.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic_ai import FunctionToolset
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import AgentDepsT
from pydantic_ai.toolsets import AgentToolset
from temporalio import workflow

from activities.sessions import (
    SessionReadRequest,
    SessionResult,
    SessionSearchRequest,
    read_session,
    search_sessions,
)
from stores.identifiers import DEFAULT_WORKSPACE
from stores.reading.reader import Library
from workflows import names, policies
from workflows.journal import find_journal
from workflows.submission import current_submission

Request = TypeVar("Request", SessionSearchRequest, SessionReadRequest)

SEARCH_TOOL = "session_search"
READ_TOOL = "session_read"

SEARCH_DESCRIPTION = """\
Search the conversations of this workspace that you may read, by keywords: their titles, what \
users said, what agents answered. All keywords have to be in one field; there is no ranking, the \
newest come first. Returns JSON with `matches`, each with an excerpt, and `pagination.next_after` \
for the next page. Read around a match with `session_read`."""

READ_DESCRIPTION = """\
Read turns of a conversation, oldest first: the newest ones, or those around a turn, before or \
after a position. Returns JSON with `turns`, `pagination`, and with include_execution what the \
run of the turn around, or of the newest one, has done so far. Long texts are cut; `truncated` \
tells."""


@dataclass(frozen=True, kw_only=True)
class PlainReading:
    """For runs outside a workflow: what is read, and for whom."""

    library: Library
    principal: str
    workspace_id: str = DEFAULT_WORKSPACE


class SessionHistoryToolset(FunctionToolset[AgentDepsT]):
    """The tools `session_search` and `session_read`.

    Args:
        plain: what is read outside a workflow; in one it is the worker's store.
        tool_id: the toolset's id.
    """

    def __init__(
        self, plain: PlainReading | None = None, *, tool_id: str = names.SESSION_TOOLSET
    ) -> None:
        super().__init__(id=tool_id)
        self._plain = plain
        # In a workflow they schedule their activities themselves, and may be asked again.
        metadata = {"temporal": False, "effect": "read"}
        self.add_function(
            self.session_search,
            name=SEARCH_TOOL,
            description=SEARCH_DESCRIPTION,
            takes_ctx=False,
            metadata=metadata,
        )
        self.add_function(
            self.session_read,
            name=READ_TOOL,
            description=READ_DESCRIPTION,
            takes_ctx=False,
            metadata=metadata,
        )

    async def session_search(
        self,
        query: str,
        *,
        archived: Literal["exclude", "include", "only"] = "exclude",
        include_auxiliary: bool = False,
        limit: int = 20,
        after: str | None = None,
    ) -> str:
        """Search conversations.

        Args:
            query: Keywords, at most 1024 bytes.
            archived: Whether archived conversations are searched.
            include_auxiliary: Search side and subagent conversations, too.
            limit: Most matches, 1 to 50.
            after: `pagination.next_after` of the page before.
        """
        parameters: dict[str, Any] = {
            "query": query,
            "archived": archived,
            "include_auxiliary": include_auxiliary,
            "limit": limit,
            "after": after,
        }
        request = SessionSearchRequest(parameters=parameters, **self._asker())
        if workflow.in_workflow():
            return await _journaled(names.SESSION_SEARCH_ACTIVITY, request)
        return await search_sessions(self._library, request)

    async def session_read(
        self,
        session_id: str,
        *,
        around_turn_id: str | None = None,
        before_position: int | None = None,
        after_position: int | None = None,
        limit: int = 20,
        include_execution: bool = False,
        execution_before: str | None = None,
        execution_prefix: str | None = None,
    ) -> str:
        """Read a conversation.

        Args:
            session_id: `conversation_public_id` of a match.
            around_turn_id: `turn_public_id` of a match: the turn in the middle.
            before_position: Only turns before this position.
            after_position: Only turns after this position.
            limit: Most turns, 1 to 50.
            include_execution: Add what the run of the turn has done so far.
            execution_before: `execution.pagination.next_before` of the page before.
            execution_prefix: One of `branches`: read the delegated run behind it.
        """
        parameters: dict[str, Any] = {
            "around_turn_public_id": around_turn_id,
            "before_position": before_position,
            "after_position": after_position,
            "limit": limit,
            "include_execution": include_execution,
            "execution_before": execution_before,
            "execution_prefix": execution_prefix,
        }
        request = SessionReadRequest(session_id=session_id, parameters=parameters, **self._asker())
        if workflow.in_workflow():
            return await _journaled(names.SESSION_READ_ACTIVITY, request)
        return await read_session(self._library, request)

    def _asker(self) -> dict[str, Any]:
        """Workspace and principal, as whoever started the run has set them."""
        if not workflow.in_workflow():
            plain = self._plain
            return (
                {"workspace_id": plain.workspace_id, "principal": plain.principal} if plain else {}
            )
        journal, submission = find_journal(), current_submission.get()
        asker: dict[str, Any] = {"principal": submission.principal if submission else None}
        return asker if journal is None else asker | {"workspace_id": journal.workspace_id}

    @property
    def _library(self) -> Library:
        """What is read outside a workflow.

        Raises:
            UserError: nobody said.
        """
        if self._plain is None:
            message = (
                "SessionHistory has nothing to read outside a workflow: give it "
                "PlainReading(library=Library(store=...), principal=...)"
            )
            raise UserError(message)
        return self._plain.library


async def _journaled(activity: str, request: Request) -> str:
    found: SessionResult = await workflow.execute_activity(
        activity,
        request,
        result_type=SessionResult,
        start_to_close_timeout=policies.READ_TIMEOUT,
        retry_policy=policies.READ_RETRIES,
    )
    return found.text


@dataclass
class SessionHistory(AbstractCapability[AgentDepsT]):
    """Lets the model search and read the conversations that its run's principal may read.

    Args:
        plain: what is read outside a workflow, and for whom; in one it is the worker's store, for
            the principal that the run was submitted for. A run without one may read nothing.
        id: to tell two on one agent apart.
    """

    plain: PlainReading | None = None
    id: str | None = field(default=names.SESSION_HISTORY, kw_only=True)
    _toolset: SessionHistoryToolset[AgentDepsT] = field(init=False, repr=False, compare=False)
    """Always the same one: a run takes another object for a second toolset of one id."""

    def __post_init__(self) -> None:
        """Make the one toolset."""
        self._toolset = SessionHistoryToolset(self.plain)

    def get_toolset(self) -> AgentToolset[AgentDepsT] | None:
        """The toolset with both tools."""
        return self._toolset
