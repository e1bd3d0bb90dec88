"""What a caller, a log and a history are told of the driver's errors."""

import traceback

import pytest
from pymongo.errors import BulkWriteError
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DataConverter

from activities.errors import as_application_error
from stores.errors import StoreError
from stores.mongo.failures import is_duplicate, reason_of, store_errors


def refused(code: int) -> BulkWriteError:
    problem = {"index": 0, "code": code, "errmsg": "being dropped", "op": {"text": "a secret"}}
    return BulkWriteError({"writeErrors": [problem], "writeConcernErrors": []})


def test_documents_of_a_bulk_write_are_in_no_message_trace_or_history() -> None:
    assert "a secret" in str(refused(215))
    assert "a secret" not in reason_of(refused(215))
    with pytest.raises(StoreError) as raised, store_errors("commit 3", "localhost"):
        raise refused(215)
    assert "commit 3 on localhost" in str(raised.value)
    assert "a secret" not in "".join(traceback.format_exception(raised.value))
    failure = Failure()
    application_error = as_application_error(raised.value)
    application_error.__cause__ = raised.value
    converter = DataConverter.default
    converter.failure_converter.to_failure(application_error, converter.payload_converter, failure)
    assert "commit 3" in str(failure)
    assert "a secret" not in str(failure)


def test_what_kind_of_refusal_it_was_is_still_known() -> None:
    with pytest.raises(StoreError) as raised, store_errors("write media", "localhost"):
        raise refused(11000)
    assert is_duplicate(raised.value.__cause__)
