"""Files of JSON lines, which are only ever added to."""

import json
import os
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stores.errors import StoreConfigurationError


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a line stands, its line feed left out; in bytes."""

    offset: int
    length: int


class JsonLog:
    """One such file. Not all of it need count: `end` is said by whoever reads or adds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        """Up to here `new_lines` has given all."""

    @property
    def size(self) -> int:
        """Bytes of the file, 0 when there is none."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def new_lines(self, end: int) -> Generator[tuple[Place, bytes]]:
        """The lines that have been added up to `end` since the last call, with their places."""
        if end <= self.offset:
            return
        begin, self.offset = self.offset, end
        for line in self.read(begin, end).split(b"\n"):
            if line:
                yield Place(offset=begin, length=len(line)), line
            begin += len(line) + 1

    def lines_at(self, places: Iterable[Place]) -> Generator[bytes]:
        """Lines again."""
        with self.path.open("rb") as file:
            for place in places:
                file.seek(place.offset)
                yield file.read(place.length)

    def read(self, begin: int, end: int) -> bytes:
        """The bytes from `begin` to `end`, as far as there are any."""
        try:
            with self.path.open("rb") as file:
                file.seek(begin)
                return file.read(end - begin)
        except FileNotFoundError:
            return b""

    def cut(self, end: int) -> None:
        """Remove what stands behind `end`: a commit that was not finished.

        Raises:
            StoreConfigurationError: the file is too short. Not retryable.
        """
        size = self.size
        if size < end:
            msg = (
                f"{self.path} has {size} bytes of the {end} that were committed; restore it from "
                "a backup"
            )
            raise StoreConfigurationError(msg)
        if size > end:
            os.truncate(self.path, end)

    def add(self, rows: Iterable[dict[str, Any]]) -> int:
        """Add a line for each row and make sure that they stay; the size of the file after that."""
        text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        with self.path.open("ab") as file:
            file.write(text.encode(errors="surrogatepass"))
            file.flush()
            os.fsync(file.fileno())
            return file.tell()
