"""Opening a store by the name of its backend, whose implementation is imported only then."""

from pathlib import Path
from typing import Literal, get_args

from stores.identifiers import DEFAULT_WORKSPACE
from stores.media.messages import DEFAULT_THRESHOLD_BYTES, MediaChoice
from stores.payload_store import ChunkStore
from stores.protocols import StepStore
from stores.redaction import NO_REDACTION, Redaction

Backend = Literal["memory", "file", "sqlite", "mongodb"]
"""Where steps are kept: in this process, on this machine for plain runs, or in MongoDB."""

_DEFAULTS = {"media_store": "auto", "media_threshold_bytes": DEFAULT_THRESHOLD_BYTES}
"""Of the arguments whose default is not `None`."""

_MEDIA = frozenset({"media_store", "media_threshold_bytes"})

_ARGUMENTS: dict[Backend, frozenset[str]] = {
    "memory": frozenset({"max_snapshots_per_run"}),
    "file": frozenset({"directory", "max_snapshots_per_run"}) | _MEDIA,
    "sqlite": frozenset({"database", "max_snapshots_per_run"}) | _MEDIA,
    "mongodb": frozenset({"database", "db_url", "max_snapshots_per_run"}) | _MEDIA,
}


def open_step_store(
    backend: Backend,
    *,
    directory: str | Path | None = None,
    database: str | Path | None = None,
    db_url: str | None = None,
    workspace_id: str = DEFAULT_WORKSPACE,
    max_snapshots_per_run: int | None = None,
    media_store: MediaChoice = "auto",
    media_threshold_bytes: int = DEFAULT_THRESHOLD_BYTES,
    redaction: Redaction = NO_REDACTION,
) -> StepStore:
    """A store of that backend. Nothing is opened before the first call. Never in a workflow.

    Args:
        backend: `memory`, `file`, `sqlite` or `mongodb`.
        directory: `file` alone: where the directories of the runs are.
        database: `sqlite`: the file; `mongodb`: the database's name.
        db_url: `mongodb` alone: a connection string; the store closes its client in `aclose`.
        workspace_id: the workspace that the store is bound to.
        max_snapshots_per_run: see `stores.retention`.
        media_store: where large content goes: the one that suits the backend, another, or none.
        media_threshold_bytes: content of this size and above goes there.
        redaction: what is masked in all that is written.

    Raises:
        ValueError: the backend is unknown, its arguments are missing, or it does not take them.
            Not retryable.
        InvalidIdentifierError: the workspace id is malformed. Not retryable.
    """
    _check_arguments(
        backend,
        directory=directory,
        database=database,
        db_url=db_url,
        max_snapshots_per_run=max_snapshots_per_run,
        media_store=media_store,
        media_threshold_bytes=media_threshold_bytes,
    )
    if backend == "memory":
        from stores.memory import InMemoryStepStore  # noqa: PLC0415 - see the module's docstring

        return InMemoryStepStore(
            workspace_id=workspace_id,
            max_snapshots_per_run=max_snapshots_per_run,
            redaction=redaction,
        )
    if backend == "file":
        from stores.file.steps import FileStepStore  # noqa: PLC0415 - see the module's docstring

        return FileStepStore(
            _needed(directory, "directory=: where the directories of the runs are"),
            workspace_id=workspace_id,
            max_snapshots_per_run=max_snapshots_per_run,
            media_store=media_store,
            media_threshold_bytes=media_threshold_bytes,
            redaction=redaction,
        )
    if backend == "sqlite":
        from stores.sqlite.steps import SqliteStepStore  # noqa: PLC0415 - see the module's docstring

        return SqliteStepStore(
            database=_needed(database, "database=: the file that holds the runs"),
            workspace_id=workspace_id,
            max_snapshots_per_run=max_snapshots_per_run,
            media_store=media_store,
            media_threshold_bytes=media_threshold_bytes,
            redaction=redaction,
        )
    from stores.mongo.steps import MongoStepStore  # noqa: PLC0415 - see the module's docstring

    name = None if database is None else str(database)
    return MongoStepStore(
        db_url=db_url,
        database=name,
        workspace_id=workspace_id,
        max_snapshots_per_run=max_snapshots_per_run,
        media_store=media_store,
        media_threshold_bytes=media_threshold_bytes,
        redaction=redaction,
    )


def open_chunk_store(db_url: str, database: str) -> ChunkStore:
    """Where payloads are kept, in MongoDB. Nothing is opened before the first call.

    Raises:
        ValueError: the database has no name. Not retryable.
    """
    from stores.mongo.chunks import MongoChunkStore  # noqa: PLC0415 - see the module's docstring
    from stores.mongo.client import MongoConnection  # noqa: PLC0415

    connection = MongoConnection(client=None, db_url=db_url, database=database)
    return MongoChunkStore(connection, owns_connection=True)


def _check_arguments(backend: Backend, **arguments: object) -> None:
    if backend not in _ARGUMENTS:
        known = ", ".join(map(repr, get_args(Backend)))
        msg = f"cannot open a step store with backend {backend!r}; known are {known}"
        raise ValueError(msg)
    given = {name for name, value in arguments.items() if value != _DEFAULTS.get(name)}
    foreign = ", ".join(f"{name}=" for name in sorted(given - _ARGUMENTS[backend]))
    if foreign:
        msg = f"backend {backend!r} takes no {foreign}; leave it out, or name another backend"
        raise ValueError(msg)


def _needed(value: str | Path | None, what: str) -> str | Path:
    if value is None:
        msg = f"pass {what}"
        raise ValueError(msg)
    return value


def store_of_spec(
    backend: Backend,
    *,
    directory: str | None = None,
    database: str | None = None,
    max_snapshots_per_run: int | None = None,
) -> StepStore | None:
    """The store that a serialised spec names; `None` where it names nothing but memory.

    Raises:
        ValueError: `mongodb`, whose connection string belongs in no spec, or an unknown backend.
    """
    if backend not in {"memory", "file", "sqlite"}:
        message = f"backend {backend!r} is none of 'memory', 'file', 'sqlite'"
        raise ValueError(message)
    store = open_step_store(
        backend,
        directory=directory,
        database=database,
        max_snapshots_per_run=max_snapshots_per_run,
    )
    return None if backend == "memory" and max_snapshots_per_run is None else store
