"""Opening a store by the name of its backend, whose implementation is imported only then."""

from typing import Literal, get_args

from stores.identifiers import DEFAULT_WORKSPACE
from stores.protocols import StepStore

Backend = Literal["memory", "mongodb"]
"""Where steps are kept: in this process, or in MongoDB."""


def open_step_store(
    backend: Backend,
    *,
    db_url: str | None = None,
    database: str | None = None,
    workspace_id: str = DEFAULT_WORKSPACE,
) -> StepStore:
    """A store of that backend. Nothing is connected before the first call. Never in a workflow.

    Args:
        backend: `memory` or `mongodb`.
        db_url: `mongodb` alone: a connection string; the store closes its client in `aclose`.
        database: `mongodb` alone: the database's name.
        workspace_id: the workspace that the store is bound to.

    Raises:
        ValueError: the backend is unknown, or its arguments are missing. Not retryable.
        InvalidIdentifierError: the workspace id is malformed. Not retryable.
    """
    if backend == "memory":
        from stores.memory import InMemoryStepStore  # noqa: PLC0415 - see the module's docstring

        return InMemoryStepStore(workspace_id=workspace_id)
    if backend == "mongodb":
        from stores.mongo.steps import MongoStepStore  # noqa: PLC0415 - see the module's docstring

        return MongoStepStore(db_url=db_url, database=database, workspace_id=workspace_id)
    known = ", ".join(map(repr, get_args(Backend)))
    msg = f"cannot open a step store with backend {backend!r}; known are {known}"
    raise ValueError(msg)
