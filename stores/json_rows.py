"""Rows as JSON objects: for stores that keep text."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Generic, TypeVar, cast

from pydantic import TypeAdapter

Record = TypeVar("Record")

STORES_OWN = frozenset({"row_id"})
"""Fields that say where a row is stored, and are therefore not part of it."""


class JsonForm(Generic[Record]):
    """How the rows of one type are written. A field that a row lacks is `None` or its default.

    So a store that was written before a field was added reads as if it had its default.
    """

    def __init__(self, record_type: type[Record]) -> None:
        self._adapter = TypeAdapter(record_type)
        declared: tuple[Any, ...] = fields(record_type)  # type: ignore[arg-type]
        self.names = tuple(each.name for each in declared if each.name not in STORES_OWN)
        self.required = tuple(
            each.name
            for each in declared
            if each.default is MISSING and each.default_factory is MISSING
        )

    def dump(self, record: Record) -> dict[str, Any]:
        """The row's fields as JSON values; those that are `None` are left out."""
        values = self._adapter.dump_python(record, mode="json", exclude=set(STORES_OWN))
        return {name: value for name, value in values.items() if value is not None}

    def load(self, values: Mapping[str, Any]) -> Record:
        """The row that `dump` wrote; names that it does not know are passed over.

        Raises:
            ValueError: the values make no such row.
        """
        return self._adapter.validate_python({**dict.fromkeys(self.required), **values})

    def load_text(self, text: str | bytes) -> Record:
        """The row of a JSON object.

        Raises:
            ValueError: the text is none, or makes no such row.
        """
        values: object = json.loads(text)
        if not isinstance(values, dict):
            msg = f"found {type(values).__name__} where an object should be"
            raise ValueError(msg)  # noqa: TRY004 - damage, not a mistake of the caller
        return self.load(cast("dict[str, Any]", values))
