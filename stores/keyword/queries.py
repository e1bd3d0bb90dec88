"""What keyword search is asked and what it answers, whatever holds the index.

A match is a field (`title`, `prompt`, `content`, `steers`) that holds every keyword of the query.
Fields that may not be read are left out before a page is filled.
"""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from stores.conversation_records import ArchivedFilter
from stores.keyword.lexer import lexemes

KeywordField = Literal["content", "prompt", "steers", "title"]

MOST_QUERY_BYTES = 1024
"""Of a query's UTF-8."""

MOST_MATCHES = 50
"""On one page."""

DEFAULT_MATCHES = 20


class InvalidParameterError(ValueError):
    """A parameter of a search is not what it may be.

    Args:
        parameter: its name, as the API has it.
        problem: what was found and what to do; it never repeats what was given.
    """

    def __init__(self, parameter: str, problem: str) -> None:
        self.parameter = parameter
        self.problem = problem
        super().__init__(parameter, problem)

    def __str__(self) -> str:
        """The same as one sentence."""
        return f"{self.parameter}: {self.problem}"


@dataclass(frozen=True, kw_only=True)
class KeywordQuery:
    """Keywords, and among which conversations they are looked for.

    Args:
        text: keywords; 1 to 1,024 bytes of UTF-8 that are not all white space.
        archived: whether archived conversations are left out, in, or all there is.
        include_auxiliary: side and sub-agent conversations, too.

    Raises:
        InvalidParameterError: the text is empty, too long, or no Unicode text.
    """

    text: str
    archived: ArchivedFilter = "exclude"
    include_auxiliary: bool = False
    lexemes: tuple[str, ...] = field(init=False)
    """What a field must hold; empty where the text has stop words and punctuation alone."""

    def __post_init__(self) -> None:
        """Read the text, or refuse it."""
        if not self.text.strip():
            raise InvalidParameterError(
                parameter="query", problem="it is empty; give at least one keyword"
            )
        try:
            size = len(self.text.encode())
        except UnicodeEncodeError as error:
            problem = "it holds a lone surrogate, which is no text; send UTF-8"
            raise InvalidParameterError(parameter="query", problem=problem) from error
        if size > MOST_QUERY_BYTES:
            problem = f"it has {size} bytes of UTF-8; the most are {MOST_QUERY_BYTES}"
            raise InvalidParameterError(parameter="query", problem=problem)
        object.__setattr__(self, "lexemes", tuple(sorted(lexemes(self.text))))


@dataclass(frozen=True, kw_only=True)
class ConversationFilter:
    """Which conversations of the workspace a principal may read at this moment.

    Args:
        principal: whose page it is; a cursor serves nobody else.
        everything: all conversations of the workspace.
        conversation_ids: these.
        owners: those that one of these principals began.
    """

    principal: str
    everything: bool = False
    conversation_ids: frozenset[str] = frozenset()
    owners: frozenset[str] = frozenset()

    def allows(self, conversation_id: str, owner: str | None) -> bool:
        """Whether it is one of them; `owner` is the principal that began it."""
        return self.everything or conversation_id in self.conversation_ids or owner in self.owners


@dataclass(frozen=True, kw_only=True)
class KeywordMatch:
    """A field that holds all keywords, and a stretch of its text.

    Turn, variant and position are `None` where the field is a title. `conversation_id` is for the
    caller; the API shows public ids alone.
    """

    conversation_id: str
    conversation_public_id: str
    title: str
    turn_public_id: str | None
    variant_public_id: str | None
    position: int | None
    field: KeywordField
    inherited: bool
    excerpt: str
    truncated: bool


@dataclass(frozen=True, kw_only=True)
class KeywordPage:
    """Matches in order, and the cursor behind the last; `None`: there are no more."""

    matches: tuple[KeywordMatch, ...]
    next_after: str | None = None


class KeywordReads(Protocol):
    """Keyword search over the conversations of a database."""

    async def search_history(
        self,
        workspace_id: str,
        query: KeywordQuery,
        allowed: ConversationFilter,
        *,
        page_size: int = DEFAULT_MATCHES,
        after: str | None = None,
    ) -> KeywordPage:
        """One page of matches.

        Order: descending public id of the turn (of the conversation for a title), then descending
        public id of the conversation, then descending name of the field. A page holds what follows
        its cursor in that order and may be read now: what changed since the page before can be
        missing or new, nothing comes twice.

        Args:
            workspace_id: of the conversations.
            query: the keywords.
            allowed: what the principal may read now; read it anew for each page.
            page_size: 1 to 50.
            after: `next_after` of the page before, of the same query, workspace and principal.

        Raises:
            InvalidParameterError: page size or cursor are not what they may be.
            StoreConfigurationError: the index does not hold all conversations yet.
            StoreUnavailableError: no server could be reached. Retryable.
        """
        ...


def check_page_size(page_size: int) -> int:
    """The page size, if it is one.

    Raises:
        InvalidParameterError: it is not between 1 and 50.
    """
    if not 1 <= page_size <= MOST_MATCHES:
        problem = f"{page_size} is not between 1 and {MOST_MATCHES}"
        raise InvalidParameterError(parameter="limit", problem=problem)
    return page_size
