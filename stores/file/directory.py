"""The directory of a store: one directory for each run."""

import threading
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from stores.file.layout import is_safe
from stores.file.runs import RunFiles

MAX_RUNS = 16
"""Runs whose rows are kept in memory: more than one process runs at a time. A run's messages are
not among them, so that a long one takes some megabytes."""


class StoreDirectory:
    """What the store objects of all workspaces share. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, RunFiles] = OrderedDict()

    @contextmanager
    def used(self) -> Generator[None]:
        """Keep other threads away."""
        with self._lock:
            yield

    def run(self, run_id: str) -> RunFiles:
        """A run's files as they are now; there need be none."""
        files = self._runs.pop(run_id, None) or RunFiles(self.path / run_id)
        self._runs[run_id] = files
        if len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)
        files.refresh()
        return files

    def glance(self, run_id: str) -> RunFiles:
        """As `run`, for one of many: it is not kept in memory."""
        if run_id in self._runs:
            return self.run(run_id)
        files = RunFiles(self.path / run_id)
        files.refresh()
        return files

    def run_ids(self) -> list[str]:
        """The runs that there are directories for, in order."""
        try:
            found = [each for each in self.path.iterdir() if is_safe(each.name) and each.is_dir()]
        except FileNotFoundError:
            return []
        return sorted(each.name for each in found)

    def problems(self) -> list[str]:
        """What is damaged, in words."""
        problems: list[str] = []
        for run_id in self.run_ids():
            files = RunFiles(self.path / run_id)
            files.refresh()
            files.everything()
            problems += files.problems
        return problems
