"""How much text a page has, and what becomes of it: first come, first served.

Characters are Unicode code points.
"""

PAGE_CHARACTERS = 12_000
"""Of one page, of turns and of what they did together."""

FIELD_CHARACTERS = 2_000
"""Of one field of a turn."""

PREVIEW_CHARACTERS = 500
"""Of one text of an execution: 24 calls of a round leave something for the next one."""


class TextBudget:
    """What a page may still hold."""

    def __init__(self, characters: int = PAGE_CHARACTERS) -> None:
        self._left = characters

    def take(self, text: str, *, at_most: int = FIELD_CHARACTERS) -> str:
        """The beginning of the text that fits; it is spent."""
        taken = text[: min(at_most, self._left)]
        self._left -= len(taken)
        return taken
