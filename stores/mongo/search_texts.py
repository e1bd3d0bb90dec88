"""The texts of messages as a search reads them: with large texts, without the bytes of files."""

import logging
from collections.abc import Mapping, Sequence

from stores.media.messages import MessageMedia
from stores.mongo.client import MongoConnection

_LOGGER = logging.getLogger(__name__)

_AT_ONCE = 500
"""Bodies that are loaded together."""


class SearchTexts:
    """What is stored of a workspace's messages, by digest."""

    def __init__(self, connection: MongoConnection, media: MessageMedia) -> None:
        self._connection = connection
        self._media = media

    def for_workspace(self, workspace_id: str) -> "SearchTexts":
        """The same for another workspace."""
        return SearchTexts(self._connection, self._media.for_workspace(workspace_id))

    async def load(self, digests: Sequence[str]) -> dict[str, str]:
        """The texts of these messages; one that is not there or has lost content is left out.

        Raises:
            pymongo.errors.PyMongoError: MongoDB failed.
            StoreError: the media store is away, or refuses.
        """
        texts: dict[str, str] = {}
        for start in range(0, len(digests), _AT_ONCE):
            query = {"_id": {"$in": list(digests[start : start + _AT_ONCE])}}
            found = self._connection.database["messages"].find(query, {"text": 1})
            stored = {each["_id"]: each["text"] for each in await found.to_list()}
            texts |= await self.searched(stored)
        return texts

    async def searched(self, stored: Mapping[str, str]) -> dict[str, str]:
        """Stored texts with the large texts in them; see `load`."""
        texts = await self._media.searched(stored)
        for digest, error in texts.broken.items():
            _LOGGER.warning("message %s cannot be searched: %s", digest, error)
        return dict(texts.found)
