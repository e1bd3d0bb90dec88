"""What a worker in production exports and logs holds no known secret, with content in it or not."""

import base64
import json
from uuid import uuid4

import pytest

from settings import Settings
from tests.helpers.collector import Collector
from tests.helpers.production_worker import ProductionWorker, perdure_run, variables_of
from tests.helpers.script import script

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

CONTENT = "passport-P-4711"


@pytest.mark.usefixtures("mongo")
@pytest.mark.parametrize(("content", "log_format"), [("false", "text"), ("true", "json")])
async def test_a_known_secret_is_in_no_span_and_no_log_whether_they_hold_content_or_not(
    temporal_address: str,
    mongodb_uri: str,
    mongodb_database: str,
    task_queue: str,
    content: str,
    log_format: str,
) -> None:
    settings = Settings(
        temporal_address=temporal_address,
        mongodb_uri=mongodb_uri,
        mongodb_database=mongodb_database,
        task_queue=task_queue,
        agents="tests.helpers.user_agents:SCRIPT_IN_PRODUCTION",
    )
    secret = 'tk-"very-private"-é0123'  # noqa: S105 - of the test; JSON has it in several ways
    collector = Collector()
    key = base64.b64encode(b"k" * 32).decode()
    environment = {
        **variables_of(settings),
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        "PERDURE_TELEMETRY_CONTENT": content,
        "PERDURE_LOG_FORMAT": log_format,
        "PERDURE_REDACT_ENV": "SHOP_TOKEN",
        "PERDURE_PAYLOAD_KEYS": json.dumps({"one": key}),
        "PERDURE_PAYLOAD_KEY": "one",
        "SHOP_TOKEN": secret,
    }
    told = {"text": f"{CONTENT} {secret}"}
    run_id = f"run-{uuid4().hex}"
    steps = script([[("echo", told)], [("fail", told)]], final=secret)
    with collector, ProductionWorker(environment) as worker:
        done = await perdure_run(environment, steps, run_id)
        assert "failed" in done.stderr, done.stderr
        assert await worker.stop() == 0
    sent = b"".join(collector.bodies)
    assert run_id.encode() in sent
    assert (CONTENT.encode() in sent) is (content == "true")
    assert (b"[redacted]" in sent) is (content == "true")
    assert b"very-private" not in sent
    assert run_id in worker.log
    assert "very-private" not in worker.log
