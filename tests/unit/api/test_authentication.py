"""JWTs of an issuer, beside Perdure's own tokens."""

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as new_key
from jwt import PyJWKClient
from jwt.algorithms import ECAlgorithm

from api.authentication import JwtVerifier, jwt_verifier
from settings import Settings
from stores.memory import InMemoryStepStore
from tests.helpers.reading import Said, admit, opened_api, parameter_of, put_conversation

ISSUER = "https://login.example"


@pytest.fixture(scope="module")
def key() -> EllipticCurvePrivateKey:
    return new_key(SECP256R1())


def verifier_of(key: EllipticCurvePrivateKey, tmp_path: Path) -> JwtVerifier:
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (tmp_path / "key.pem").write_bytes(public)
    verifier = jwt_verifier(
        Settings(
            api_jwt_issuer=ISSUER,
            api_jwt_audience="perdure",
            api_jwt_keys=f"file:{tmp_path / 'key.pem'}",
        )
    )
    assert verifier is not None
    return verifier


def claims(**changed: Any) -> dict[str, Any]:
    expires = datetime.now(UTC) + timedelta(minutes=5)
    found = {"sub": "ann", "iss": ISSUER, "aud": "perdure", "exp": expires, **changed}
    return {name: value for name, value in found.items() if value is not None}


def resigned(key: EllipticCurvePrivateKey, token: str) -> str:
    """The token's claims as those of another principal, under the signature that it has."""
    head, _, seal = token.split(".")
    other = jwt.encode(claims(sub="eve"), key, algorithm="ES256").split(".")[1]
    return f"{head}.{other}.{seal}"


PAST = datetime(2020, 1, 1, tzinfo=UTC)


async def test_a_jwt_of_the_issuer_is_as_good_as_a_token(
    key: EllipticCurvePrivateKey, tmp_path: Path
) -> None:
    store = InMemoryStepStore()
    head = await put_conversation(store, "c", [Said()])
    own = await admit(store, "ann")
    good = jwt.encode(claims(), key, algorithm="ES256")
    deep = base64.urlsafe_b64encode(b"[" * 6_000).decode()
    refused = [
        jwt.encode(claims(exp=PAST), key, algorithm="ES256"),
        jwt.encode(claims(exp=None), key, algorithm="ES256"),
        jwt.encode(claims(aud="another"), key, algorithm="ES256"),
        jwt.encode(claims(iss="https://other.example"), key, algorithm="ES256"),
        jwt.encode(claims(sub="nobody"), key, algorithm="ES256"),
        jwt.encode(claims(sub=None), key, algorithm="ES256"),
        jwt.encode(claims(sub="x" * 5_000), key, algorithm="ES256"),
        jwt.encode(claims(nbf=datetime.now(UTC) + timedelta(hours=1)), key, algorithm="ES256"),
        resigned(key, good),
        jwt.encode(claims(), new_key(SECP256R1()), algorithm="ES256"),
        jwt.encode(claims(), "a shared secret of thirty-two bytes", algorithm="HS256"),
        jwt.encode(claims(), "", algorithm="none"),
        good + "x",
        "a.b.c",
        jwt.encode(claims(sub="\ud800"), key, algorithm="ES256"),
        f"{good.split('.')[0]}.{deep}.x",
        f"{deep}.e30.x",
        "x" * 10_000,
    ]
    async with opened_api(store, good, verifier=verifier_of(key, tmp_path)) as api:
        assert (await api.history(head.public_id)).status_code == 200
        for token in refused:
            answer = await api.client.get(
                f"/agent_api/v1/workspaces/{api.workspace}/conversation_search?query=a",
                headers={"Authorization": f"Bearer {token}"},
            )
            assert answer.status_code == 401, token
        await store.conversations.access.revoke("ann")
        assert (await api.history(head.public_id)).status_code == 404
    async with opened_api(store, own, verifier=verifier_of(key, tmp_path)) as api:
        assert (await api.search(query="a")).status_code == 404  # known, and no member any more
    async with opened_api(store, good) as api:
        assert (await api.search(query="a")).status_code == 401  # no issuer is named


def test_settings_of_jwts_come_together(tmp_path: Path) -> None:
    assert jwt_verifier(Settings()) is None
    with pytest.raises(ValueError, match="set all three, or none"):
        jwt_verifier(Settings(api_jwt_issuer=ISSUER))
    with pytest.raises(ValueError, match="cannot be read"):
        jwt_verifier(
            Settings(
                api_jwt_issuer=ISSUER,
                api_jwt_audience="perdure",
                api_jwt_keys=f"file:{tmp_path / 'missing.pem'}",
            )
        )


class Issuer(BaseHTTPRequestHandler):
    """Gives the public keys of an issuer, by their ids."""

    keys: ClassVar[dict[str, EllipticCurvePrivateKey]] = {}
    asked: ClassVar[int] = 0

    def do_GET(self) -> None:
        Issuer.asked += 1
        known = [
            {**json.loads(ECAlgorithm.to_jwk(each.public_key())), "kid": kid, "use": "sig"}
            for kid, each in self.keys.items()
        ]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"keys": known}).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        """Say nothing."""


@pytest.fixture
def issuer() -> Iterator[str]:
    """The address of an issuer's keys."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Issuer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/keys"
        server.shutdown()
        thread.join()


async def test_keys_of_an_issuer_may_change_and_an_unknown_one_opens_nothing(
    key: EllipticCurvePrivateKey, issuer: str
) -> None:
    store = InMemoryStepStore()
    await put_conversation(store, "c", [Said()])
    await admit(store, "ann")
    second = new_key(SECP256R1())
    Issuer.keys, Issuer.asked = {"1": key}, 0
    keys = PyJWKClient(issuer)
    verifier = JwtVerifier(issuer=ISSUER, audience="perdure", keys=keys)

    async def status(signer: EllipticCurvePrivateKey, kid: str | None) -> int:
        headers = None if kid is None else {"kid": kid}
        token = jwt.encode(claims(), signer, algorithm="ES256", headers=headers)
        async with opened_api(store, token, verifier=verifier) as api:
            return (await api.search(query="hello")).status_code

    assert await status(key, "1") == 200
    assert await status(second, "2") == 401  # nobody knows it
    assert await status(second, "1") == 401  # it names another one's
    assert await status(key, None) == 401
    assert Issuer.asked == 1  # whoever makes keys up does not have the issuer asked each time
    Issuer.keys = {"1": key, "2": second}
    keys.cooldown_duration = 0
    assert await status(second, "2") == 200
    assert await status(key, "1") == 200
    assert Issuer.asked == 2


async def test_an_issuer_that_gives_no_keys_is_503(key: EllipticCurvePrivateKey) -> None:
    away = Settings(
        api_jwt_issuer=ISSUER, api_jwt_audience="perdure", api_jwt_keys="https://127.0.0.1:1/keys"
    )
    token = jwt.encode(claims(), key, algorithm="ES256", headers={"kid": "1"})
    async with opened_api(InMemoryStepStore(), token, verifier=jwt_verifier(away)) as api:
        assert parameter_of(await api.search(query="a")) == (503, "unavailable", None)
