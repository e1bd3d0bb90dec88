"""What refers to stored messages and to media: lists of named sources, one function each.

What none of them names is swept. Whoever stores digests of messages, or ids of media, in a new
place adds a function here, an entry to `SOURCES` or `MEDIA_SOURCES`, and a test that a sweep keeps
what only it refers to.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from stores.mongo.leftovers import RunPlace, View, leftovers_of
from stores.ranges import holds

Source = Callable[[View, Sequence[str]], Awaitable[set[str]]]
"""Tells which of these (`_id`s in `messages`, or in `media`) it refers to, as the view sees it.

It is asked for a page at a time, needs an index that begins with the digest, and is asked again in
the transaction that removes what was left: so it reads with the view's session.
"""

_MOST_PLACES = 100
"""Of one message that a dry run looks at; one in more of them counts as needed."""


async def snapshots(view: View, digests: Sequence[str]) -> set[str]:
    """By way of the positions of runs' logs, which snapshots name; of marked branches, too."""
    place = {"run_id": "$run_id", "workspace_id": "$workspace_id", "position": "$position"}
    pipeline: list[dict[str, Any]] = [
        {"$match": {"message": {"$in": list(digests)}}},
        {"$group": {"_id": "$message"}},
    ]
    if view.is_dry:
        first = {"$firstN": {"input": {**place, "live": "$live"}, "n": _MOST_PLACES}}
        pipeline[-1]["$group"] |= {"places": first, "count": {"$sum": 1}}
    found = await view.database["positions"].aggregate(pipeline, session=view.session)
    rows = await found.to_list()
    return await _without_leftovers(view, rows) if view.is_dry else {each["_id"] for each in rows}


async def _without_leftovers(view: View, rows: Sequence[dict[str, Any]]) -> set[str]:
    """The messages that are not merely at positions which a sweep would remove first."""
    runs = {_place(each) for row in rows for each in row["places"]}
    leftovers = await leftovers_of(view, runs) if runs else {}
    return {
        row["_id"]
        for row in rows
        if row["count"] > _MOST_PLACES
        or any(
            not each["live"] or not holds(leftovers.get(_place(each), ()), each["position"])
            for each in row["places"]
        )
    }


async def searched(view: View, digests: Sequence[str]) -> set[str]:
    """By the log of a conversation: what it said stays findable, whatever became of snapshots."""
    query: dict[str, Any] = {"messages": {"$in": list(digests)}, "conversation_id": {"$gt": ""}}
    asked = set(digests)
    found = view.database["search_log"].find(query, {"messages": 1}, session=view.session)
    return {digest async for each in found for digest in each["messages"] if digest in asked}


def _place(position: Mapping[str, str]) -> RunPlace:
    return position["workspace_id"], position["run_id"]


SOURCES: Mapping[str, Source] = {
    "snapshots": snapshots,
    "searched": searched,
}
"""All there are, in the order in which they are asked: the one that keeps most comes first."""


async def messages(view: View, media: Sequence[str]) -> set[str]:
    """By markers in messages; their `_id`s in `media` are beside the text."""
    found = await view.database["messages"].distinct(
        "media", {"media": {"$in": list(media)}}, session=view.session
    )
    return {str(each) for each in found} & set(media)


MEDIA_SOURCES: Mapping[str, Source] = {
    "messages": messages,
}
"""As `SOURCES`, for media."""


async def unreferred(
    view: View, digests: Sequence[str], sources: Mapping[str, Source] = SOURCES
) -> list[str]:
    """What no source refers to, in its order."""
    left = list(digests)
    for source in sources.values():
        if left:
            referred = await source(view, left)
            left = [each for each in left if each not in referred]
    return left
