"""A search that was found to be one, before anybody looks who asks."""

from dataclasses import dataclass

from stores.keyword.queries import InvalidParameterError, KeywordQuery
from stores.reading.parameters import SearchParameters
from stores.reading.refusals import ParameterInvalidError


@dataclass(frozen=True, kw_only=True)
class Search:
    """Keywords, and what page is wanted."""

    query: KeywordQuery
    parameters: SearchParameters

    @classmethod
    def of(cls, parameters: SearchParameters) -> "Search":
        """The search that is asked for.

        Raises:
            ParameterInvalidError: the query is empty, too long, or no text.
        """
        try:
            query = KeywordQuery(
                text=parameters.query,
                archived=parameters.archived,
                include_auxiliary=parameters.include_auxiliary,
            )
        except InvalidParameterError as error:
            raise ParameterInvalidError(error.problem, parameter=error.parameter) from error
        return cls(query=query, parameters=parameters)
