"""The file of an export: JSON Lines with a head, a digest at the end, and nothing else to know.

The format is described in docs/export.md. A file is read as a whole before anything is made of it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from stores.errors import ExportFileError

FORMAT = "perdure-export"

VERSION = 1

Line = dict[str, Any]
"""One JSON object; `kind` says what it is."""


@dataclass(frozen=True, kw_only=True)
class ExportSummary:
    """What a whole file holds.

    Attributes:
        digest: SHA-256 (hex) of all lines but the last.
        run_ids: of the runs in it.
        conversation_id: of the conversation, if it is one's.
        has_media: whether large content is in the file.
        counts: of lines, by kind.
    """

    digest: str
    run_ids: tuple[str, ...]
    conversation_id: str | None
    has_media: bool
    counts: Mapping[str, int]


class ExportWriter:
    """Writes the lines of one file.

    Args:
        file: opened for writing bytes.
        has_media: whether large content goes into it.
    """

    def __init__(self, file: IO[bytes], *, has_media: bool) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.counts: dict[str, int] = {}
        self.write({"kind": "export", "format": FORMAT, "version": VERSION, "media": has_media})

    def write(self, line: Line) -> None:
        """Write one line."""
        data = _dumped(line)
        self._digest.update(data)
        self._file.write(data)
        self.counts[line["kind"]] = self.counts.get(line["kind"], 0) + 1

    def finish(self) -> str:
        """Write the last line; the digest in it."""
        digest = self._digest.hexdigest()
        lines = sum(self.counts.values())
        self._file.write(_dumped({"kind": "end", "lines": lines, "digest": digest}))
        return digest


def check_export(path: Path) -> ExportSummary:
    """Read a file once and say what is in it.

    Raises:
        ExportFileError: it is none of ours, of a newer version, cut, or was changed. Not retryable.
    """
    digest = hashlib.sha256()
    counts: dict[str, int] = {}
    run_ids: list[str] = []
    conversation_id: str | None = None
    head: Line | None = None
    with path.open("rb") as file:
        for number, data in enumerate(file, start=1):
            line = _loaded(path, number, data)
            kind = str(line.get("kind"))
            if head is None:
                head = _checked_head(path, line)
            if kind == "end":
                _check_end(path, line, digest.hexdigest(), sum(counts.values()))
                if file.read(1):
                    raise ExportFileError(path, f"goes on behind its last line, {number}")
                return ExportSummary(
                    digest=digest.hexdigest(),
                    run_ids=tuple(run_ids),
                    conversation_id=conversation_id,
                    has_media=bool(head.get("media")),
                    counts=counts,
                )
            digest.update(data)
            counts[kind] = counts.get(kind, 0) + 1
            if kind == "run":
                run_ids.append(str(line["run_id"]))
            if kind == "conversation":
                conversation_id = str(line["conversation_id"])
    problem = "is empty" if head is None else f"is cut: it ends without its last line ({counts})"
    raise ExportFileError(path, problem)


def export_lines(path: Path) -> Iterator[Line]:
    """The lines of a file that was checked, without the first and the last one."""
    with path.open("rb") as file:
        for number, data in enumerate(file, start=1):
            line = _loaded(path, number, data)
            if line["kind"] not in {"export", "end"}:
                yield line


def _dumped(line: Line) -> bytes:
    text = json.dumps(line, ensure_ascii=True, separators=(",", ":"))
    return f"{text}\n".encode()


def _loaded(path: Path, number: int, data: bytes) -> Line:
    try:
        line: Any = json.loads(data)
    except ValueError as error:
        problem = f"is cut or was changed: line {number} is no JSON"
        if number == 1:
            problem = "is no export of Perdure: its first line is no JSON"
        raise ExportFileError(path, problem) from error
    if not isinstance(line, dict) or not data.endswith(b"\n"):
        raise ExportFileError(path, f"is cut or was changed: line {number} is not whole")
    return line  # pyright: ignore[reportUnknownVariableType] - JSON


def _checked_head(path: Path, line: Line) -> Line:
    if line.get("kind") != "export" or line.get("format") != FORMAT:
        raise ExportFileError(path, "is no export of Perdure: its first line does not say so")
    version = line.get("version")
    if not isinstance(version, int) or version > VERSION:
        problem = (
            f"has version {version}, and this Perdure reads up to {VERSION}; import it with the "
            "version that wrote it, or a later one"
        )
        raise ExportFileError(path, problem)
    return line


def _check_end(path: Path, line: Line, digest: str, lines: int) -> None:
    if line.get("lines") != lines:
        raise ExportFileError(path, f"has {lines} lines, and should have {line.get('lines')}")
    if line.get("digest") != digest:
        problem = f"was changed: its digest is {digest}, and its last line says {line['digest']}"
        raise ExportFileError(path, problem)
