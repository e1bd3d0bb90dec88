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
from stores.access import TOKEN_PREFIX, AccessStore, Caller
from stores.errors import InvalidIdentifierError
from stores.identifiers import check_identifier

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
        try:
            return check_identifier("principal_id", claims["sub"])
        except InvalidIdentifierError:  # an issuer may name somebody as no principal can be named
            return None


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
    """Finds the principal of a request and its rights, anew for each."""

    access: AccessStore
    clock: Callable[[], datetime]
    verifier: JwtVerifier | None = None

    async def caller_of(self, token: str, workspace_public_id: str) -> Caller | None:
        """Who asks within a workspace; `None`: nobody that is known."""
        if len(token) > LONGEST_TOKEN:
            return None
        if token.startswith(TOKEN_PREFIX) or self.verifier is None:
            return await self.access.bearer_in(token, workspace_public_id, now=self.clock())
        subject = await self.verifier.subject_of(token)
        if subject is None:
            return None
        return await self.access.principal_in(subject, workspace_public_id)


async def authenticated(request: Request, _: Annotated[object, Depends(bearer)]) -> Caller:
    """The principal that asks, and its rights in the workspace of the path.

    Raises:
        UnauthenticatedError: there is no token, or nobody is known by it.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        message = "send `Authorization: Bearer` with a token; `perdure access add-token` makes one"
        raise UnauthenticatedError(message)
    authenticator: Authenticator = request.app.state.authenticator
    # The path is not checked yet: who is not known is told that first.
    workspace = request.path_params["workspace_public_id"].lower()
    caller = await authenticator.caller_of(token.strip(), workspace)
    if caller is None:
        message = "nobody is known by this token: it is none, has expired, or was revoked"
        raise UnauthenticatedError(message)
    return caller


CurrentCaller = Annotated[Caller, Depends(authenticated)]
