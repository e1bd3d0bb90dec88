"""The step store in a directory of files, for plain runs on one machine."""

import os
from collections.abc import Collection, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from anyio import to_thread

from stores.errors import StoreConfigurationError
from stores.file.directory import StoreDirectory
from stores.file.rows import FileRows
from stores.identifiers import DEFAULT_WORKSPACE
from stores.local import LocalStepStore
from stores.media.disk import DiskMediaStore, disk_error
from stores.media.messages import DEFAULT_THRESHOLD_BYTES, MediaChoice, MessageMedia
from stores.redaction import NO_REDACTION, Redaction


class FileStepStore(LocalStepStore):
    """`StepStore` in files. Any number of processes of one machine may use one directory.

    A run is the directory `<directory>/<run_id>/`, so its id must match `[A-Za-z0-9_.-]{1,200}`
    without `..`. In it are, one JSON object a line, in files that are only added to:

    - `events.jsonl`, `tool_effects.jsonl` (of an effect the last line counts), and `messages.jsonl`
      (of a position the last line counts);
    - `snapshots/{n}.json`, in the order in which they were saved; each names ranges of positions,
      not messages, so that the 800th costs what the 8th does;
    - `snapshot-keys.jsonl`, the keys of snapshots that were pruned;
    - `commits.jsonl`: each commit's line, written last. It says how much of the other files counts.
      What a killed process has left behind it is not read, and removed by the next writer;
    - `media/`, beside the runs: large content of their messages, see `DiskMediaStore`;
    - `run.json`, the run as the newest commit left it. It is there for people and other tools: the
      store itself reads the commit's line.

    Writers lock the run's directory, readers need no lock. A commit is on disk when its caller
    hears of it. One of several runs is written run by run: when a crash comes between, repeat it.
    A line that is damaged is left out and logged; what cannot do without it names it in an error.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        workspace_id: str = DEFAULT_WORKSPACE,
        max_snapshots_per_run: int | None = None,
        media_store: MediaChoice = "auto",
        media_threshold_bytes: int = DEFAULT_THRESHOLD_BYTES,
        redaction: Redaction = NO_REDACTION,
    ) -> None:
        """Bind the store; nothing is opened before the first call.

        Args:
            directory: made with the first write when it is missing.
            workspace_id: the workspace that the store is bound to.
            max_snapshots_per_run: see `stores.retention`.
            media_store: for large content; a `DiskMediaStore` in `<directory>/media` by default.
            media_threshold_bytes: content of this size and above goes there.
            redaction: what is masked in all that is written.

        Raises:
            ValueError: a bound or a threshold below 1.
            InvalidIdentifierError: the workspace id is malformed.
        """
        if media_store == "auto":
            media_store = DiskMediaStore(Path(directory) / "media")
        super().__init__(
            workspace_id=workspace_id,
            redaction=redaction,
            max_snapshots_per_run=max_snapshots_per_run,
            media=MessageMedia(
                media_store, workspace_id=workspace_id, threshold_bytes=media_threshold_bytes
            ),
        )
        self._directory = StoreDirectory(Path(directory))

    @contextmanager
    def _session(
        self, attempt: str, *, writing: Collection[str] | None = None
    ) -> Generator[FileRows]:
        with self._errors(attempt), self._directory.used(), ExitStack() as locks:
            rows = FileRows(self._directory, workspace_id=self._workspace_id)
            if writing is not None:
                rows.lock(writing, locks)
            yield rows

    @contextmanager
    def _errors(self, attempt: str) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise disk_error(error, f"{attempt} in {self._directory.path}") from error

    async def initialise(self) -> list[str]:
        """See `StepStore.initialise`. The first write does the same by itself."""
        return await to_thread.run_sync(self._initialise)

    def _initialise(self) -> list[str]:
        path = self._directory.path
        with self._errors("prepare the store"):
            if path.is_dir():
                return []
            path.mkdir(parents=True, exist_ok=True)
            return [f"made directory {path}"]

    async def verify(self) -> None:
        """See `StepStore.verify`. Reads every file but for the messages' texts."""
        await to_thread.run_sync(self._verify)

    def _verify(self) -> None:
        path = self._directory.path
        with self._errors("check the store"), self._directory.used():
            if not (path.is_dir() and os.access(path, os.R_OK | os.W_OK | os.X_OK)):
                msg = f"{path} is no directory that can be written; make it one, or name another"
                raise StoreConfigurationError(msg)
            problems = self._directory.problems()
        if problems:
            msg = f"{path} is damaged: {'; '.join(problems)}; restore these files from a backup"
            raise StoreConfigurationError(msg)

    async def aclose(self) -> None:
        """See `StepStore.aclose`. There is nothing to release between calls but uploads."""
        await self._media.aclose()
