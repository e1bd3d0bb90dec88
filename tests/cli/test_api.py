"""`perdure api` and `perdure access` as processes, with a MongoDB and without a Temporal."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode, checks
from schemathesis.specs.openapi import checks as openapi_checks

from stores.conversation_records import ConversationRecord
from stores.mongo.steps import MongoStepStore
from tests.cli.test_commands import Perdure
from tests.helpers.reading import NOW, Said, put_conversation

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ANY: Any = checks
OPENAPI: Any = openapi_checks
CHECKS: list[Any] = [
    ANY.not_a_server_error,
    OPENAPI.status_code_conformance,
    OPENAPI.content_type_conformance,
    OPENAPI.response_schema_conformance,
]
EXAMPLES = 40


@contextmanager
def serving(variables: dict[str, str]) -> Generator[str]:
    """The address of a service, in a process of its own on a free port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "api", "--port", "0"],
        cwd=ROOT,
        env={**os.environ, **variables},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found, line + process.stderr.read()
        yield found.group()
    finally:
        process.terminate()
        process.communicate(timeout=20)


async def prepared(uri: str, database: str) -> tuple[ConversationRecord, str]:
    store = MongoStepStore(db_url=uri, database=database)
    try:
        await store.initialise()
        said = [Said(prompt=f"said {n}", content="x" * 900 * n) for n in range(9)]
        head = await put_conversation(store, "c", said)
        return head, await store.conversations.workspace_public_id(now=NOW)
    finally:
        await store.aclose()


@pytest.mark.spec("HS-5", "HS-29")
def test_the_service_answers_as_its_document_says_without_a_temporal(
    mongodb_uri: str, mongodb_database: str, tmp_path: Path
) -> None:
    head, workspace = asyncio.run(prepared(mongodb_uri, mongodb_database))
    variables = {
        "PERDURE_MONGODB_URI": mongodb_uri,
        "PERDURE_MONGODB_DATABASE": mongodb_database,
        "PERDURE_TEMPORAL_ADDRESS": "127.0.0.1:1",
        "PERDURE_DATA_DIR": str(tmp_path),
    }
    told = {name.removeprefix("PERDURE_").lower(): each for name, each in variables.items()}
    perdure = Perdure(told)
    refused = perdure("access", "add-token", "ann")
    assert (refused.returncode, "no principal 'ann'" in refused.stderr) == (3, True)
    perdure.document("access", "add-principal", "ann", "--kind", "agent")
    assert perdure("access", "add-principal", "ann").returncode == 1  # a human of that id
    token = perdure.document("access", "add-token", "ann", "--days", "1")
    granted = perdure.document("access", "grant", "ann", "--own", "--conversation", "c")
    assert [each["conversation_id"] for each in granted["grants"]] == [None, "c"]
    listed = perdure.document("access", "list")["principals"]
    assert [each["tokens"][0]["token_id"] for each in listed] == [token["token_id"]]
    assert token["token"] not in str(listed)

    with serving(variables) as address:
        headers = {"Authorization": f"Bearer {token['token']}"}
        base = f"{address}/agent_api/v1/workspaces/{workspace}"
        path = f"{base}/conversations/{head.public_id}/history"
        assert len(httpx2.get(path, headers=headers).json()["turns"]) == 9
        schema: Any = schemathesis.openapi.from_url(f"{address}/openapi.json")
        real = {
            "workspace_public_id": workspace,
            "conversation_public_id": head.public_id,
        }
        for operation in schema.get_all_operations():
            asked = conforms(operation.ok(), GenerationMode.POSITIVE, real, headers)
            assert {200, 404} <= asked, asked
            assert 400 in conforms(operation.ok(), GenerationMode.NEGATIVE, real, headers)

        wrong = perdure("access", "revoke", "ann")
        assert (wrong.returncode, "name what goes" in wrong.stderr) == (2, True)
        perdure.document("access", "revoke", "ann", "--token", token["token_id"])
        assert httpx2.get(path, headers=headers).status_code == 401
    assert perdure("access", "revoke", "ann", "--all").stdout.startswith("revoked 2 grants")


def conforms(
    operation: Any, mode: GenerationMode, real: dict[str, str], headers: dict[str, str]
) -> set[int]:
    """Ask anything of an operation, half of it about a conversation that there is; the statuses."""
    asked: list[int] = []

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    def ask(case: Any) -> None:
        if len(asked) % 2:
            known = {name: real[name] for name in case.path_parameters if name in real}
            case.path_parameters.update(known)
        response = case.call(headers=headers)
        case.validate_response(response, checks=CHECKS)
        asked.append(response.status_code)

    ask()
    return set(asked)
