"""Which behaviour is shown by which test: lists of behaviours joined with the marks of the tests.

`python -m tests.spec.table` writes each result below the introduction of its page.
"""

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

ROOT = Path(__file__).parents[2]
PAGES = {
    "behaviours.toml": ROOT / "docs" / "step-persistence.md",
    "conversation_search.toml": ROOT / "docs" / "conversation-search.md",
    "conversations.toml": ROOT / "docs" / "conversations.md",
    "history_api.toml": ROOT / "docs" / "history-api.md",
}
"""By the list whose behaviours a page tells."""

BEGIN = "<!-- Written by `make docs` from here on. -->"


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What must hold. `instead` says what holds here in its place, `issue` what brings it later."""

    section: str
    code: str
    words: str
    instead: str | None = None
    issue: int | None = None


@dataclass(frozen=True, kw_only=True, order=True)
class Shown:
    """A test with one code that it names."""

    path: str
    test: str
    code: str


def behaviours(*lists: str) -> list[Behaviour]:
    """The behaviours of these lists, of all by default, in their order."""
    return [each for name in lists or PAGES for each in _behaviours_in(name)]


def _behaviours_in(name: str) -> list[Behaviour]:
    sections = tomllib.loads(Path(__file__).with_name(name).read_text())
    return TypeAdapter(list[Behaviour]).validate_python(
        [
            {"section": section, "code": code, **({"words": it} if isinstance(it, str) else it)}
            for section, lines in sections.items()
            for code, it in lines.items()
        ]
    )


@cache
def marked_tests() -> list[Shown]:
    """Each code that a test carries, sorted; the tests are read, not imported."""
    return sorted(
        Shown(path=path.relative_to(ROOT).as_posix(), test=test, code=code)
        for path in (ROOT / "tests").rglob("*.py")
        for test, code in codes_of(path.read_text())
    )


def _parsed(source: str) -> ast.Module:
    """Its tree; Python 3.11 fails now and then where another thread parses (CPython 106905)."""
    for _ in range(5):
        try:
            return ast.parse(source)
        except SystemError:
            continue
    return ast.parse(source)


def codes_of(source: str) -> set[tuple[str, str]]:
    """Each test of a module with a code: its own, of its class or of its module (`pytestmark`).

    Raises:
        TypeError: a code is no literal text.
    """
    tree = _parsed(source)
    assigned = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    marks = [each for value in assigned for each in getattr(value, "elts", [value])]
    return set(_tests_in(tree, list(_codes_in(marks))))


def _tests_in(parent: ast.Module | ast.ClassDef, outer: list[str]) -> Iterator[tuple[str, str]]:
    for node in parent.body:
        if isinstance(node, ast.ClassDef):
            yield from _tests_in(node, [*outer, *_codes_in(node.decorator_list)])
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_test(node.name):
            yield from ((node.name, code) for code in (*outer, *_codes_in(node.decorator_list)))


def _is_test(name: str) -> bool:
    return name.startswith("test_")


def _codes_in(marks: list[ast.expr]) -> Iterator[str]:
    for mark in marks:
        if not isinstance(mark, ast.Call) or ast.unparse(mark.func) != "pytest.mark.spec":
            continue
        for argument in mark.args:
            if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                message = f"a code is a literal text, found {ast.unparse(mark)}"
                raise TypeError(message)
            yield argument.value


def page(name: str) -> str:
    """The whole page of a list: its introduction as it is, and the table."""
    introduction = PAGES[name].read_text().partition(BEGIN)[0]
    tests: dict[str, list[Shown]] = {}
    for shown in marked_tests():
        tests.setdefault(shown.code, []).append(shown)
    lines: list[str] = []
    section = ""
    for each in behaviours(name):
        if each.section != section:
            section = each.section
            lines += ["", f"### {section}", "", "| code | what holds | shown by |", "|---|---|---|"]
        lines.append(f"| {each.code} | {_words(each)} | {_evidence(each, tests.get(each.code))} |")
    return introduction + BEGIN + "\n" + "\n".join(lines) + "\n"


def _words(behaviour: Behaviour) -> str:
    further = f"<br>*Here:* {behaviour.instead}" if behaviour.instead else ""
    return behaviour.words + further


def _evidence(behaviour: Behaviour, tests: list[Shown] | None) -> str:
    """Links to the tests, by the sentence that is the name of each."""
    links = [
        f"[{each.test.removeprefix('test_').replace('_', ' ')}](../{each.path})"
        for each in tests or []
    ]
    if behaviour.issue is not None:
        links.append(f"comes with issue #{behaviour.issue}")
    return "<br>".join(links)


if __name__ == "__main__":
    for each, path in PAGES.items():
        path.write_text(page(each))
