import pickle

import pytest

from stores.errors import (
    AlreadyContinuedError,
    DamagedSnapshotError,
    IdempotencyConflictError,
    InvalidIdentifierError,
    MessageTooLargeError,
    OriginRemovedError,
    RunIdTakenError,
    StoreError,
    StoreUnavailableError,
    UnresolvedEffectsError,
)


@pytest.mark.parametrize(
    "error",
    [
        InvalidIdentifierError("run_id", "", "is empty"),
        RunIdTakenError("run-1"),
        AlreadyContinuedError("run-1", "run-2"),
        OriginRemovedError("run-1"),
        UnresolvedEffectsError("run-1", 3, ("pay (call 'a')",)),
        DamagedSnapshotError("run-1", 3, "position 2 is missing", "Take snapshot 2"),
        IdempotencyConflictError("append_event", "run-1", "k"),
        DamagedSnapshotError("run-1", 3, "position 2 is missing"),
        MessageTooLargeError("run-1", 3, 17, 16),
        StoreUnavailableError("away"),
    ],
)
def test_an_error_is_rebuilt_from_its_data_when_pickled(error: StoreError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_only_an_outage_is_retryable() -> None:
    assert StoreUnavailableError.retryable
    assert not RunIdTakenError.retryable
    assert not MessageTooLargeError.retryable
