import re

from tests.architecture.source_tree import (
    PACKAGES,
    ROOT,
    product_modules,
    python_files,
    within_project,
)

LONGEST_MODULE_LINES = 450
"""About 400 is where good modules end; the rest is room to finish a thought."""

NAMES_WITHOUT_A_NOUN = {"base", "common", "helpers", "types", "utils"}

TODO_WITHOUT_ISSUE = re.compile(r"#\s*(FIXME|HACK|TODO|XXX)\b(?!\(#\d+\))")


def test_no_module_is_too_long() -> None:
    lengths = {
        within_project(path): len(path.read_text().splitlines()) for path in product_modules()
    }

    assert {name: n for name, n in lengths.items() if n > LONGEST_MODULE_LINES} == {}


def test_every_module_is_named_after_a_noun() -> None:
    named = [
        within_project(path)
        for path in product_modules()
        if NAMES_WITHOUT_A_NOUN & {*path.relative_to(ROOT).parent.parts, path.stem.strip("_")}
    ]

    assert named == []


def test_package_files_are_empty() -> None:
    # The workflow sandbox executes them again for every run.
    package_files = [path for path in product_modules() if path.name == "__init__.py"]

    assert {path.parent.name for path in package_files} >= set(PACKAGES)
    assert [within_project(path) for path in package_files if path.read_text()] == []


def test_every_todo_names_its_issue() -> None:
    unnumbered = [
        f"{within_project(path)}:{number}: {line.strip()}"
        for path in python_files()
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if TODO_WITHOUT_ISSUE.search(line)
    ]

    assert unnumbered == []


def test_a_todo_is_told_from_one_with_an_issue() -> None:
    marker = "TODO"  # apart from its sign, or this file would be found

    assert TODO_WITHOUT_ISSUE.search(f"x = 1  # {marker}: later")
    assert not TODO_WITHOUT_ISSUE.search(f"x = 1  # {marker}(#12): later")
