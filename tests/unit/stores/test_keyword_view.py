"""The rows of a workspace in memory."""

from typing import Any

from stores.keyword.queries import ConversationFilter, KeywordQuery
from stores.mongo.keyword_view import KeywordView
from stores.search.counting import term_key

ORDER = "01900000-0000-7000-8000-0000000000"
EVERYTHING = ConversationFilter(principal="reader", everything=True)
QUERY = KeywordQuery(text="whale")
WHALE = term_key("whale") - ((term_key("whale") >> 63) << 64)


def title(conversation: str, *, is_deleted: bool = False) -> dict[str, Any]:
    facts = {
        "public_id": f"{ORDER}10",
        "is_archived": False,
        "is_auxiliary": False,
        "is_deleted": is_deleted,
        "owner": None,
    }
    return {"conversation_id": conversation, "position": -1, "field": "title", "facts": facts}


def prompt(conversation: str, position: int, **changes: Any) -> dict[str, Any]:
    row = {
        "conversation_id": conversation,
        "position": position,
        "field": "prompt",
        "order_id": f"{ORDER}{20 + position}",
        "number": 1,
        "live": True,
        "lexemes": [WHALE],
    }
    return row | changes


def positions(view: KeywordView) -> list[int]:
    found = view.find([term_key("whale")], QUERY, EVERYTHING, None, 10)
    return [each.position for each in found]


def test_a_conversation_is_searched_once_its_title_row_is_there() -> None:
    view = KeywordView()
    view.take([prompt("c", 0)])  # as of a fork whose head is not there yet
    assert positions(view) == []
    view.take([title("c")])
    assert positions(view) == [0]


def test_of_a_row_that_comes_twice_the_last_counts() -> None:
    view = KeywordView()
    view.take([title("c"), prompt("c", 0), prompt("c", 1), prompt("c", 0, live=False)])
    assert positions(view) == [1]
    view.take([prompt("c", 0), prompt("c", 1), prompt("c", 0)])
    assert positions(view) == [1, 0]
    view.sort()
    assert positions(view) == [1, 0]


def test_nothing_of_a_deleted_conversation_is_waited_for() -> None:
    view = KeywordView()
    view.take([title("c"), title("d"), prompt("c", 0)])
    view.take([prompt(each, 1, live=False, pending=True) for each in ("c", "d")])
    assert len(view.pending) == 2
    view.take([title("c", is_deleted=True)])
    assert positions(view) == []
    assert len(view.pending) == 1


def test_turns_of_one_moment_come_by_the_rest_of_their_ids() -> None:
    view = KeywordView()
    view.take([title("c"), *(prompt("c", position) for position in (3, 0, 7, 5, 1, 6))])
    keys = [term_key("whale")]
    first = view.find(keys, QUERY, EVERYTHING, None, 2)
    assert [each.position for each in first] == [7, 6]
    rest = view.find(keys, QUERY, EVERYTHING, view.place(first[-1]), 3)
    assert [each.position for each in rest] == [5, 3, 1]
