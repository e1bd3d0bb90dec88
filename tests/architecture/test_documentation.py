import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from cli.main import app
from tests.architecture.source_tree import ROOT, documents, within_project

PYTHON_BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def python_blocks(document: Path) -> Iterator[tuple[str, str]]:
    """Each Python block of a document, with the place where it begins."""
    text = document.read_text()
    for block in PYTHON_BLOCK.finditer(text):
        line = text.count("\n", 0, block.start()) + 1
        yield f"{within_project(document)}:{line}", textwrap.dedent(block.group(2))


def commands(group: TyperGroup, path: str) -> Iterator[tuple[str, str | None]]:
    """Each command that can be called, as it is typed, with the last words of its help."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command.epilog


def all_commands() -> dict[str, str | None]:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return dict(commands(group, "perdure"))


def test_python_blocks_of_the_documents_compile() -> None:
    blocks = [block for document in documents() for block in python_blocks(document)]

    assert blocks, "no document shows any Python"
    for place, source in blocks:
        try:
            compile(source, place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError as error:
            pytest.fail(f"{place}: {error}")


def test_the_command_line_reference_is_what_the_commands_say() -> None:
    typer_command = str(Path(sys.executable).with_name("typer"))
    options = ("--name", "perdure", "--title", "Command line")
    generated = subprocess.run(
        [typer_command, "cli.main", "utils", "docs", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    written = (ROOT / "docs" / "cli.md").read_text()
    assert written.strip() == generated.strip(), "docs/cli.md is out of date: run `make docs`"


def test_every_command_is_in_the_reference() -> None:
    reference = (ROOT / "docs" / "cli.md").read_text()

    assert [name for name in all_commands() if f"## `{name}`\n" not in reference] == []


def test_the_help_of_every_command_ends_with_an_example() -> None:
    without = [name for name, epilog in all_commands().items() if name not in (epilog or "")]

    assert without == []
