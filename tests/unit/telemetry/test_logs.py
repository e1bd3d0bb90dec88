"""One JSON object a line, with ids, and without the words of errors that may quote a message."""

import json
import logging
import sys

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import format_trace_id

from stores.errors import StoreUnavailableError
from telemetry.logs import JsonFormatter
from workflows.lineage import Lineage, Scope, entered


def logged(formatter: logging.Formatter, error: BaseException | None = None) -> dict[str, object]:
    information = None
    if error is not None:
        try:
            raise error
        except type(error):
            information = sys.exc_info()
    record = logging.LogRecord(
        "perdure.x", logging.INFO, __file__, 1, "did %s", ("it",), information
    )
    line = formatter.format(record)
    assert "\n" not in line
    found: dict[str, object] = json.loads(line)
    return found


def test_ids_of_run_conversation_workspace_and_trace() -> None:
    lineage = Lineage(run_id="r", conversation_id="c", workspace_id="w")
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    with entered(Scope(lineage=lineage)), tracer.start_as_current_span("s") as span:
        found = logged(JsonFormatter(process=1))
    assert (found["run_id"], found["conversation_id"], found["workspace_id"]) == ("r", "c", "w")
    assert found["trace_id"] == format_trace_id(span.get_span_context().trace_id)
    assert (found["message"], found["level"], found["process"]) == ("did it", "INFO", 1)
    assert "run_id" not in logged(JsonFormatter())


def test_words_of_errors_stay_out_but_for_the_stores_own() -> None:
    secret = ValueError("the passport number is P-123")
    found = logged(JsonFormatter(), secret)
    assert found["error"] == "ValueError"
    assert "logged" in str(found["error_at"])
    assert "P-123" not in json.dumps(found)
    assert logged(JsonFormatter(with_content=True), secret)["error_message"] == str(secret)
    away = StoreUnavailableError("MongoDB is away")
    assert logged(JsonFormatter(), away)["error_message"] == "MongoDB is away"
