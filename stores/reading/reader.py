"""What a principal may read of a workspace: the one way in, for HTTP and for models' tools."""

from dataclasses import asdict, dataclass

from stores.access import ReadingRights
from stores.keyword.queries import ConversationFilter, InvalidParameterError
from stores.protocols import StepStore
from stores.reading.history import read_history
from stores.reading.pages import HistoryPage, KeywordMatch, SearchPage, SearchPagination
from stores.reading.parameters import HistoryParameters
from stores.reading.refusals import ParameterInvalidError, no_workspace
from stores.reading.searching import Search


@dataclass(frozen=True, kw_only=True)
class WorkspaceReader:
    """Reads one workspace for one principal, with the rights that it had a moment ago.

    Make another one for each question: so each page is read with the rights of its time.
    """

    store: StepStore
    rights: ReadingRights

    async def search(self, search: Search) -> SearchPage:
        """A page of matches, newest turns first; what may not be read is left out before.

        Raises:
            ParameterInvalidError: the cursor is not one of this search and reader.
        """
        parameters = search.parameters
        try:
            page = await self.store.keywords.search_history(
                self.rights.workspace_id,
                search.query,
                _filter(self.rights),
                page_size=parameters.limit,
                after=parameters.after,
            )
        except InvalidParameterError as error:
            raise ParameterInvalidError(error.problem, parameter=error.parameter) from error
        shown = KeywordMatch.model_fields
        return SearchPage(
            matches=[
                KeywordMatch(**{name: value for name, value in asdict(e).items() if name in shown})
                for e in page.matches
            ],
            pagination=SearchPagination(next_after=page.next_after),
        )

    async def read(self, conversation_public_id: str, parameters: HistoryParameters) -> HistoryPage:
        """A window of a conversation; see `read_history`."""
        return await read_history(self.store, self.rights, conversation_public_id, parameters)


def _filter(rights: ReadingRights) -> ConversationFilter:
    return ConversationFilter(
        principal=rights.principal_id,
        everything=rights.reach == "all",
        conversation_ids=rights.conversation_ids,
        owners=frozenset({rights.principal_id}),
    )


@dataclass(frozen=True, kw_only=True)
class Library:
    """All workspaces of a database, by a store of any of them."""

    store: StepStore

    async def reader(self, principal_id: str | None, workspace_id: str) -> WorkspaceReader:
        """The principal's way into a workspace.

        Raises:
            NotFoundError: it is no member, or there is no principal.
        """
        access = self.store.conversations.access
        return self.reader_with(await access.rights(principal_id, workspace_id))

    def reader_with(self, rights: ReadingRights | None) -> WorkspaceReader:
        """The way into a workspace that somebody's rights, read for this question, open.

        Raises:
            NotFoundError: there are none.
        """
        if rights is None:
            raise no_workspace()
        return WorkspaceReader(store=self.store.for_workspace(rights.workspace_id), rights=rights)
