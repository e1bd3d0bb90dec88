"""A worker's logs: for people, or one JSON object a line with the ids that lead to the run."""

import json
import logging
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Literal

from opentelemetry import trace
from temporalio import activity, workflow

from stores.errors import StoreError
from workflows.lineage import current_scope
from workflows.names import AGENT_RUN

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


def set_up_logs(
    *, form: Literal["text", "json"], level: str, with_content: bool, process: int | None = None
) -> None:
    """Send the logs of this process to standard error.

    Args:
        form: `text`, or `json`: one object a line.
        level: the least that is logged.
        with_content: also the words of errors, which may quote messages; of `json` alone.
        process: number of this process, where there are several.
    """
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonFormatter(with_content=with_content, process=process))
    else:
        mark = "" if process is None else f"[{process}] "
        handler.setFormatter(logging.Formatter(mark + TEXT_FORMAT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # One line for each request to a model provider or a collector, which spans tell better.
    logging.getLogger("httpx").setLevel(logging.WARNING)


INNERMOST_FRAMES = 8
"""Of a traceback: where it happened. The frames around are interceptors, thirty of them."""


class JsonFormatter(logging.Formatter):
    """One JSON object a record.

    Fields: `at`, `level`, `logger`, `message`; of the code that logs, as far as it is known,
    `run_id`, `conversation_id`, `workspace_id`, `workflow_id`, `execution_id`, `activity`,
    `attempt`, `trace_id`, `span_id`; of an error `error`, `error_at` (its innermost frames) and, of
    Perdure's own or with content, `error_message`.
    """

    def __init__(self, *, with_content: bool = False, process: int | None = None) -> None:
        super().__init__()
        self._with_content = with_content
        self._process = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        document: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._process,
            **dict(_place()),
            **dict(_trace()),
        }
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            document |= self._described(error)
        return json.dumps(document, ensure_ascii=False, default=str)

    def _described(self, error: BaseException) -> dict[str, object]:
        frames = traceback.extract_tb(error.__traceback__)[-INNERMOST_FRAMES:]
        described: dict[str, object] = {
            "error": type(error).__name__,
            "error_at": [f"{each.filename}:{each.lineno} {each.name}" for each in frames],
        }
        if self._with_content or isinstance(error, StoreError):
            described["error_message"] = str(error)
        return described


def _place() -> Iterator[tuple[str, object]]:
    """Where the code that logs runs."""
    scope = current_scope.get()
    if workflow.in_workflow():
        info = workflow.info()
        if info.workflow_type == AGENT_RUN:
            yield "run_id", info.workflow_id
        yield "workflow_id", info.workflow_id
        yield "execution_id", info.run_id
    elif activity.in_activity():
        place = activity.info()
        if place.workflow_type == AGENT_RUN:
            yield "run_id", place.workflow_id
        yield "workflow_id", place.workflow_id
        yield "execution_id", place.workflow_run_id
        yield "activity", place.activity_type
        yield "attempt", place.attempt
    if scope is not None:
        for name in ("run_id", "conversation_id", "workspace_id"):
            value = getattr(scope.lineage, name)
            if value is not None:
                yield name, value


def _trace() -> Iterator[tuple[str, object]]:
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        yield "trace_id", trace.format_trace_id(span.trace_id)
        yield "span_id", trace.format_span_id(span.span_id)
