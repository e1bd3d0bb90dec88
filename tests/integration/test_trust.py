"""Users without a privilege and certificates that do not match: named before anything is polled."""

import asyncio
import json
import re
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pymongo import MongoClient

from cli.binaries import find_mongod
from cli.servers import HOST, MongoServer, free_port
from client import TemporalUnavailableError, connect
from settings import Settings
from stores.errors import StoreConfigurationError, StoreError, StoreUnavailableError
from stores.mongo.steps import MongoStepStore
from tests.helpers.certificates import Certificates, make_certificates
from tests.helpers.eventually import eventually
from tests.helpers.production_worker import ROOT, variables_of
from worker import initialise, run_worker

pytestmark = pytest.mark.integration

DATABASE = "perdure"

RIGHT = "right"

EXACT = ["find", "insert", "update", "remove", "listIndexes"]
"""What a worker needs and no more."""


class GuardedMongo(MongoServer):
    """With users, and TLS for those who ask for it, under a certificate for another name."""

    def __init__(self, directory: Path, certificates: Certificates) -> None:
        super().__init__(find_mongod(copy_dir=directory / "bin"), directory, port=free_port())
        key_file = directory / "key"
        key_file.write_text("c2VjcmV0LW9mLXRoZS1zZXQ=")
        key_file.chmod(0o600)
        self.extend("--auth", "--keyFile", str(key_file), "--tlsMode", "allowTLS")
        self.extend("--tlsCertificateKeyFile", str(certificates.both))
        self.extend("--tlsAllowConnectionsWithoutCertificates")
        self.extend("--tlsCAFile", str(certificates.authority))

    async def _become_ready(self) -> None:
        """Nobody may ask for its configuration, but whoever comes first may initiate it."""
        uri = f"mongodb://{HOST}:{self.port}/?directConnection=true"
        config = {"_id": "rs0", "members": [{"_id": 0, "host": f"{HOST}:{self.port}"}]}
        with MongoClient[dict[str, Any]](uri) as client:
            client.admin.command("replSetInitiate", config)

            def is_primary() -> bool:
                return bool(client.admin.command("hello")["isWritablePrimary"])

            await eventually(is_primary, within=timedelta(seconds=30))

    def extend(self, *arguments: str) -> None:
        self.command = (*self.command, *arguments)

    def uri_of(self, user: str, secret: str = RIGHT, more: str = "") -> str:
        place = f"{HOST}:{self.port}/?replicaSet=rs0&authSource=admin"
        return f"mongodb://{user}:{secret}@{place}{more}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded() -> AsyncGenerator[tuple[GuardedMongo, Certificates]]:
    with tempfile.TemporaryDirectory(prefix="perdure-guarded-") as name:
        directory = Path(name)
        (directory / "logs").mkdir()
        certificates = make_certificates(directory, "mongo.example")
        server = GuardedMongo(directory, certificates)
        await server.start()
        try:
            await asyncio.to_thread(_make_users, server)
            yield server, certificates
        finally:
            await server.kill()


def _make_users(server: GuardedMongo) -> None:
    with MongoClient[dict[str, Any]](f"mongodb://{HOST}:{server.port}/?replicaSet=rs0") as first:
        first.admin.command("createUser", "root", pwd=RIGHT, roles=["root"])
    with MongoClient[dict[str, Any]](server.uri_of("root")) as client:
        everywhere = {"db": DATABASE, "collection": ""}
        for user, actions in (("exact", EXACT), ("half", EXACT[:2]), ("reader", ["find"])):
            privileges = [{"resource": everywhere, "actions": actions}]
            client.admin.command("createRole", f"{user}-role", privileges=privileges, roles=[])
            client.admin.command("createUser", user, pwd=RIGHT, roles=[f"{user}-role"])


@pytest.fixture
def settings(temporal_address: str, task_queue: str) -> Settings:
    return Settings(
        temporal_address=temporal_address,
        mongodb_database=DATABASE,
        task_queue=task_queue,
        agents="tests.helpers.user_agents:AGENTS",
    )


@pytest.mark.parametrize(
    ("user", "secret", "words"),
    [
        ("half", "right", "user 'half' lacks listIndexes, remove, update on database 'perdure'"),
        ("reader", "right", "user 'reader' lacks insert, listIndexes, remove, update on"),
        ("reader", "wrong", "user or password are wrong"),
    ],
)
async def test_worker_init_and_doctor_say_which_privilege_is_missing(
    guarded: tuple[GuardedMongo, Certificates],
    settings: Settings,
    user: str,
    secret: str,
    words: str,
) -> None:
    uri = guarded[0].uri_of(user, secret)
    limited = settings.model_copy(update={"mongodb_uri": uri})
    with pytest.raises(StoreConfigurationError, match=re.escape(words)):
        await run_worker(limited, stop=asyncio.Event())
    expected = (
        words if words.startswith("user or") else "lacks createCollection, createIndex, dropIndex"
    )
    with pytest.raises(StoreConfigurationError, match=re.escape(expected)):
        await initialise(limited)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "cli.main", "doctor", "--json"],
        cwd=ROOT,
        env=variables_of(limited),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    found = {each["about"]: each for each in json.loads(done.stdout)["findings"]}
    assert words in found["MongoDB"]["found"]
    assert found["MongoDB"]["status"] == "problem"


async def test_the_exact_privileges_suffice_once_an_admin_ran_init(
    guarded: tuple[GuardedMongo, Certificates], settings: Settings
) -> None:
    server, _ = guarded
    await initialise(settings.model_copy(update={"mongodb_uri": server.uri_of("root")}))
    store = MongoStepStore(db_url=server.uri_of("exact"), database=DATABASE)
    try:
        await store.verify()
        assert (await store.page_runs()).runs == []
        assert (await store.read_standing()).unresolved.count == 0
    finally:
        await store.aclose()


@pytest.mark.parametrize(
    ("knows_authority", "words"),
    [(True, "no trust between MongoDB and this process"), (False, "certificate verify failed")],
)
async def test_mongodbs_certificate_that_does_not_match_is_told(
    guarded: tuple[GuardedMongo, Certificates],
    settings: Settings,
    words: str,
    *,
    knows_authority: bool,
) -> None:
    server, certificates = guarded
    more = f"&tls=true{f'&tlsCAFile={certificates.authority}' if knows_authority else ''}"
    uri = server.uri_of("exact", more=more)
    limited = settings.model_copy(update={"mongodb_uri": uri})
    with pytest.raises(StoreUnavailableError, match=words) as raised:
        await run_worker(limited, stop=asyncio.Event())
    assert "tlsCAFile" in str(raised.value)
    assert isinstance(raised.value, StoreError)


@pytest_asyncio.fixture
async def tls_server(tmp_path: Path) -> AsyncGenerator[tuple[int, int, Certificates]]:
    """Ports that speak TLS and no more, which is where a certificate fails; one asks for ours."""
    certificates = make_certificates(tmp_path, "temporal.example")
    contexts = [ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) for _ in range(2)]
    for context in contexts:
        context.load_cert_chain(certificates.certificate, certificates.key)
        context.set_alpn_protocols(["h2"])
    contexts[1].load_verify_locations(certificates.authority)
    contexts[1].verify_mode = ssl.CERT_REQUIRED

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    servers = [await asyncio.start_server(close, HOST, ssl=each) for each in contexts]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    yield ports[0], ports[1], certificates
    for server in servers:
        server.close()


async def test_temporals_certificate_that_does_not_match_is_told(
    tls_server: tuple[int, int, Certificates], temporal_address: str, tmp_path: Path
) -> None:
    port, strict_port, certificates = tls_server
    plain = Settings(temporal_address=f"{HOST}:{port}", temporal_tls=True)
    known = plain.model_copy(update={"temporal_tls_ca": certificates.authority})
    named = known.model_copy(update={"temporal_tls_server_name": "temporal.example"})
    strict = named.model_copy(update={"temporal_address": f"{HOST}:{strict_port}"})
    missing = known.model_copy(update={"temporal_tls_ca": tmp_path / "none.pem"})
    no_tls = plain.model_copy(update={"temporal_address": temporal_address})
    for settings, words in (
        (plain, "PERDURE_TEMPORAL_TLS_CA"),
        (known, "PERDURE_TEMPORAL_TLS_SERVER_NAME"),
        (strict, "PERDURE_TEMPORAL_TLS_CERT and PERDURE_TEMPORAL_TLS_KEY"),
        (missing, "cannot read"),
        (no_tls, "it speaks no TLS"),
    ):
        with pytest.raises(TemporalUnavailableError) as raised:
            await connect(settings)
        assert words in str(raised.value), str(raised.value.__cause__)
