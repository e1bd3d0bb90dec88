"""Places in a run's stream, as readers keep them."""

from dataclasses import dataclass

from stores.errors import InvalidOffsetError

BRANCH_LENGTH = 12
"""Characters of an execution's id in an offset: the last ones, since the first ones are a time."""


@dataclass(frozen=True, kw_only=True)
class StreamOffset:
    """A place in a run's stream: an event row, or an item of a take of the request at that row.

    `branch` ends the name of the execution that wrote the row, so a reset is noticed.
    """

    sequence: int
    part: int = -1
    started: int = -1
    index: int = 0
    branch: str = ""

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Sort key within a branch."""
        return (self.sequence, self.part, self.started, self.index)

    @property
    def is_item(self) -> bool:
        """Whether it is a place in a response."""
        return self.part >= 0

    def __str__(self) -> str:
        """As readers keep it; they look at nothing in it."""
        place = f"{self.sequence}.{self.index}"
        if self.is_item:
            place = f"{self.sequence}.{self.part}.{self.started}.{self.index}"
        return f"{place}~{self.branch}"

    @classmethod
    def parse(cls, text: str) -> "StreamOffset":
        """The place that was written so.

        Raises:
            InvalidOffsetError: it was not. Not retryable.
        """
        place, separator, branch = text.partition("~")
        try:
            match [int(each) for each in place.split(".")] if separator else []:
                case [sequence, index]:
                    return cls(sequence=sequence, index=index, branch=branch)
                case [sequence, part, started, index]:
                    return cls(
                        sequence=sequence, part=part, started=started, index=index, branch=branch
                    )
                case _:
                    raise InvalidOffsetError(text)
        except ValueError as error:
            raise InvalidOffsetError(text) from error
