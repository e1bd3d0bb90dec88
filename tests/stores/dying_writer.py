"""A process that dies while it writes a commit: `python -m tests.stores.dying_writer FROM INTO`.

Copies the store in FROM to `INTO/0`, `INTO/1`, ... and writes one commit to each copy in a process
that ends, without any clean-up, when it is about to make sure of the n-th thing. The last copy gets
the whole commit. The copies are made before any thread is started, so forking is safe.
"""

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any, NoReturn

from stores.commits import Commit
from stores.file.steps import FileStepStore
from tests.stores.writer import RunScript, at, request

DIED = 9


def second_commit() -> Commit:
    """Something for every file of a run, of which a first commit has been written."""
    script = RunScript(sequence=10, saves=1, result_size=50)
    script.messages = [request("a")]
    operations = (*script.before_tool(1), *script.after_tool(1))
    end = script.event("run_completed", 2, usage={"requests": 2})
    return Commit(operations=(*operations, end), now=at(20), branch="b")


def bounded_store(directory: Path) -> FileStepStore:
    return FileStepStore(directory, max_snapshots_per_run=1)


def write_and_die(directory: Path, syncs: int) -> NoReturn:
    """Write the commit; die instead of the sync after so many of them."""
    sync, count = os.fsync, 0

    def dying_sync(fd: Any) -> None:
        nonlocal count
        if count == syncs:
            os._exit(DIED)
        count += 1
        sync(fd)

    os.fsync = dying_sync
    asyncio.run(bounded_store(directory).commit(second_commit()))
    os._exit(0)


def main(source: str, target: str) -> None:
    for syncs in range(100):
        copy = Path(target) / str(syncs)
        shutil.copytree(source, copy)
        child = os.fork()
        if child == 0:
            write_and_die(copy, syncs)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != DIED:
            raise SystemExit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(*sys.argv[1:])
