"""What the commands print: data to standard output, everything else to standard error."""

import json
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TextIO

from rich.console import Console
from rich.table import Table

PIPED_WIDTH = 200
"""Columns of a table that no terminal limits: wide enough that ids and times stay on one line."""


def print_json(document: object) -> None:
    """Print one document; dataclasses and models become objects, times ISO 8601."""
    from pydantic_core import to_jsonable_python  # noqa: PLC0415 - only here, and `--help` is quick

    plain = to_jsonable_python(document, bytes_mode="base64", serialize_unknown=True)
    sys.stdout.write(json.dumps(plain, indent=2) + "\n")
    sys.stdout.flush()


def print_text(text: str = "") -> None:
    """Print data as it is, control characters made visible."""
    _console(sys.stdout).print(printable(text), soft_wrap=True)


def print_facts(facts: Iterable[tuple[str, str | None]]) -> None:
    """Print `name  value` lines; a fact without a value is left out."""
    known = [(name, value) for name, value in facts if value]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        first, *others = value.splitlines()
        print_text(f"{name:<{width}}  {first}")
        for line in others:
            print_text(f"{'':<{width}}  {line}")


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None
) -> None:
    """Print rows under their columns, each cell whole: a long one is folded, never cut."""
    if title:
        print_text(f"\n{title}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(printable("" if cell is None else str(cell)) for cell in row))
    _console(sys.stdout).print(table)


def note(text: str, *, is_dim: bool = False) -> None:
    """Say something to a person who watches: progress, hints, what went wrong."""
    style = "dim" if is_dim else None
    _console(sys.stderr).print(printable(text), soft_wrap=True, style=style)


def printable(text: str) -> str:
    """The text with control characters as escapes, so that no stored text can drive a terminal."""
    return "".join(
        each.encode("unicode_escape").decode()
        if unicodedata.category(each) in {"Cc", "Cf", "Cs"} and each not in "\n\t"
        else each
        for each in text
    )


def moment(time: datetime | None) -> str | None:
    """`2025-11-30 00:43:12.345Z`."""
    if time is None:
        return None
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03d}Z"


def offset(time: datetime, start: datetime) -> str:
    """Seconds since `start`, as `+1.234 s`."""
    return f"{(time - start).total_seconds():+.3f} s"


def age(time: datetime) -> str:
    """How long ago that was, in the one unit that matters."""
    now = datetime.now(UTC)  # noqa: TID251 - what a person is shown is relative to the present
    passed = max(now - time, timedelta())
    if passed < timedelta(minutes=2):
        return f"{passed.total_seconds():.1f} s ago"
    if passed < timedelta(hours=2):
        return f"{passed // timedelta(minutes=1)} min ago"
    if passed < timedelta(days=2):
        return f"{passed // timedelta(hours=1)} h ago"
    return f"{passed.days} days ago"


def _console(stream: TextIO) -> Console:
    # Markup, highlighting and emoji codes would read stored text as instructions.
    console = Console(file=stream, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console
