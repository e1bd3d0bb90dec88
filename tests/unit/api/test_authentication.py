"""JWTs of an issuer, beside Perdure's own tokens."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as new_key

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


PAST = datetime(2020, 1, 1, tzinfo=UTC)


async def test_a_jwt_of_the_issuer_is_as_good_as_a_token(
    key: EllipticCurvePrivateKey, tmp_path: Path
) -> None:
    store = InMemoryStepStore()
    head = await put_conversation(store, "c", [Said()])
    own = await admit(store, "ann")
    good = jwt.encode(claims(), key, algorithm="ES256")
    refused = [
        jwt.encode(claims(exp=PAST), key, algorithm="ES256"),
        jwt.encode(claims(exp=None), key, algorithm="ES256"),
        jwt.encode(claims(aud="another"), key, algorithm="ES256"),
        jwt.encode(claims(iss="https://other.example"), key, algorithm="ES256"),
        jwt.encode(claims(sub="nobody"), key, algorithm="ES256"),
        jwt.encode(claims(sub=None), key, algorithm="ES256"),
        jwt.encode(claims(), new_key(SECP256R1()), algorithm="ES256"),
        jwt.encode(claims(), "a shared secret of thirty-two bytes", algorithm="HS256"),
        jwt.encode(claims(), "", algorithm="none"),
        good + "x",
        "a.b.c",
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


async def test_an_issuer_that_gives_no_keys_is_503(key: EllipticCurvePrivateKey) -> None:
    away = Settings(
        api_jwt_issuer=ISSUER, api_jwt_audience="perdure", api_jwt_keys="https://127.0.0.1:1/keys"
    )
    token = jwt.encode(claims(), key, algorithm="ES256", headers={"kid": "1"})
    async with opened_api(InMemoryStepStore(), token, verifier=jwt_verifier(away)) as api:
        assert parameter_of(await api.search(query="a")) == (503, "unavailable", None)
