"""From a store's error to what Temporal sees: one table, retryable or not."""

from temporalio.exceptions import ApplicationError

from stores.errors import StoreError


def as_application_error(error: StoreError) -> ApplicationError:
    """The error as an activity raises it; its type is the class name of the store's error.

    Retryable exactly when the store says so: an outage is waited for, everything else would fail
    again in the same way.
    """
    return ApplicationError(
        str(error), type=type(error).__name__, non_retryable=not type(error).retryable
    )
