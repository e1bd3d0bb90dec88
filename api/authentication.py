"""Who asks: a bearer token of ours, or a JWT of an issuer that the settings name."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Protocol

import jwt
from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from jwt import PyJWKClient
from jwt.exceptions import PyJWKClientConnectionError, PyJWTError

from api.errors import UnauthenticatedError, UnavailableError
from settings import Settings
from stores.access import TOKEN_PREFIX, AccessStore

_LOGGER = logging.getLogger("perdure.api")

ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "EdDSA")
"""All with a public key: a secret that both sides share is no thing for a service like this."""

LEEWAY_SECONDS = 30
"""Between the clocks of the issuer and of this machine."""

LONGEST_TOKEN = 8192

bearer = HTTPBearer(auto_error=False, description="A token of Perdure, or a JWT of the issuer.")


class SigningKeys(Protocol):
    """Where the issuer's public keys come from."""

    def get_signing_key_from_jwt(self, token: str | bytes) -> Any:  # noqa: ANN401 - PyJWT's
        """The key that the token names; blocks."""
        ...


@dataclass(frozen=True, kw_only=True)
class _OneKey:
    """A key from a file, whatever the token says."""

    key: str

    def get_signing_key_from_jwt(self, token: str | bytes) -> "_OneKey":  # noqa: ARG002 - the protocol's
        """Itself."""
        return self


@dataclass(frozen=True, kw_only=True)
class JwtVerifier:
    """Checks tokens of one issuer for one audience. The claim `sub` names the principal."""

    issuer: str
    audience: str
    keys: SigningKeys

    async def subject_of(self, token: str) -> str | None:
        """Whose token it is; `None` where it is not valid now.

        Raises:
            UnavailableError: the issuer does not give its keys.
        """
        try:
            # A set of keys is fetched with a blocking client.
            key = await asyncio.to_thread(self.keys.get_signing_key_from_jwt, token)
            claims = jwt.decode(
                token,
                key.key,
                algorithms=list(ALGORITHMS),
                audience=self.audience,
                issuer=self.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except PyJWKClientConnectionError as error:
            _LOGGER.warning("the issuer's keys cannot be fetched: %s", error)
            message = "the issuer of this token cannot be asked at the moment; ask again"
            raise UnavailableError(message) from error
        except PyJWTError as error:
            _LOGGER.info("a JWT was refused: %s", type(error).__name__)
            return None
        subject: object = claims["sub"]
        return subject if isinstance(subject, str) else None


def jwt_verifier(settings: Settings) -> JwtVerifier | None:
    """The verifier that the settings name; `None`: JWTs are not taken.

    Raises:
        ValueError: they name a part of it, or a file that cannot be read.
    """
    named = (settings.api_jwt_issuer, settings.api_jwt_audience, settings.api_jwt_keys)
    issuer, audience, keys = named
    if issuer is None and audience is None and keys is None:
        return None
    if issuer is None or audience is None or keys is None:
        message = (
            "JWTs need PERDURE_API_JWT_ISSUER, PERDURE_API_JWT_AUDIENCE and "
            "PERDURE_API_JWT_KEYS; set all three, or none"
        )
        raise ValueError(message)
    if keys.startswith("https://"):
        return JwtVerifier(issuer=issuer, audience=audience, keys=PyJWKClient(keys))
    try:
        key = Path(keys.removeprefix("file:")).read_text()
    except OSError as error:
        message = f"PERDURE_API_JWT_KEYS names a file that cannot be read: {error}"
        raise ValueError(message) from error
    return JwtVerifier(issuer=issuer, audience=audience, keys=_OneKey(key=key))


@dataclass(frozen=True, kw_only=True)
class Authenticator:
    """Finds the principal of a request, anew for each."""

    access: AccessStore
    clock: Callable[[], datetime]
    verifier: JwtVerifier | None = None

    async def principal_of(self, token: str) -> str | None:
        """The principal's id; `None`: nobody that is known."""
        if len(token) > LONGEST_TOKEN:
            return None
        if token.startswith(TOKEN_PREFIX) or self.verifier is None:
            return await self.access.bearer_of(token, now=self.clock())
        subject = await self.verifier.subject_of(token)
        known = None if subject is None else await self.access.find_principal(subject)
        return None if known is None else known.principal_id


async def authenticated(request: Request, _: Annotated[object, Depends(bearer)]) -> str:
    """The id of the principal that asks.

    Raises:
        UnauthenticatedError: there is no token, or nobody is known by it.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        message = "send `Authorization: Bearer` with a token; `perdure access add-token` makes one"
        raise UnauthenticatedError(message)
    authenticator: Authenticator = request.app.state.authenticator
    principal_id = await authenticator.principal_of(token.strip())
    if principal_id is None:
        message = "nobody is known by this token: it is none, has expired, or was revoked"
        raise UnauthenticatedError(message)
    return principal_id


CallerId = Annotated[str, Depends(authenticated)]
