"""Every behaviour has a test that says so, and its page tells which."""

import pytest

from tests.spec.table import PAGES, behaviours, codes_of, marked_tests, page


def test_every_behaviour_that_is_not_for_later_is_shown_by_a_test() -> None:
    shown = {each.code for each in marked_tests()}

    owned = [each.code for each in behaviours() if each.issue is None]
    assert [code for code in owned if code not in shown] == []


def test_every_code_that_a_test_names_is_known() -> None:
    known = {each.code for each in behaviours()}

    assert [each for each in marked_tests() if each.code not in known] == []


@pytest.mark.parametrize("name", PAGES)
def test_the_table_is_what_the_list_and_the_marks_say(name: str) -> None:
    path = PAGES[name]
    assert path.read_text() == page(name), f"{path.name} is out of date: run `make docs`"


def test_codes_are_found_on_modules_classes_and_functions() -> None:
    source = """
import pytest
pytestmark = [pytest.mark.integration, pytest.mark.spec("SP-1")]

@pytest.mark.spec("SP-2", "SP-3")
class TestIt:
    @pytest.mark.asyncio
    @pytest.mark.spec("SP-4")
    async def test_one(self) -> None: ...

    def other(self) -> None: ...

def test_two() -> None: ...
"""
    assert codes_of(source) == {
        ("test_one", "SP-1"),
        ("test_one", "SP-2"),
        ("test_one", "SP-3"),
        ("test_one", "SP-4"),
        ("test_two", "SP-1"),
    }
    assert codes_of("pytestmark = pytest.mark.spec('SP-1')\ndef test_it(): ...") == {
        ("test_it", "SP-1")
    }
    with pytest.raises(TypeError, match="literal text"):
        codes_of("@pytest.mark.spec(CODE)\ndef test_it(): ...")
