"""One index of a collection, as it is made and as the server describes it."""

from dataclasses import dataclass, field

from pymongo import IndexModel

from stores.mongo.documents import Document

LIVE: Document = {"live": True}
"""What most indexes are over."""


@dataclass(frozen=True, kw_only=True)
class Index:
    """One index: fields in order, all ascending (MongoDB walks them both ways)."""

    name: str
    collection: str
    fields: tuple[str, ...]
    only: Document = field(default_factory=lambda: dict(LIVE))
    is_unique: bool = False
    expires: bool = False
    """Its one field is the time when the server removes a document."""

    @property
    def specification(self) -> Document:
        """The index as the server describes it."""
        options: Document = {"unique": True} if self.is_unique else {}
        if self.expires:
            options["expireAfterSeconds"] = 0
        keys = [(each, 1) for each in self.fields]
        return {"key": keys, "partialFilterExpression": self.only, **options}

    @property
    def model(self) -> IndexModel:
        """The index as the driver makes it."""
        options = dict(self.specification)
        return IndexModel(options.pop("key"), name=self.name, **options)
