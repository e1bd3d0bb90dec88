"""`perdure api`: the HTTP service that reads conversations."""

import asyncio
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connections import current_settings, opened_mongodb
from cli.failures import CommandError, WrongUsageError
from cli.output import note

if TYPE_CHECKING:
    from api.authentication import JwtVerifier
    from settings import Settings

LOCAL_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


def api_command(
    *,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; PERDURE_API_HOST by default.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Its port, 0: any free one; PERDURE_API_PORT by default."
        ),
    ] = None,
) -> None:
    """Serve the history API: search conversations and read them, over HTTP. Ctrl-C stops it.

    It needs MongoDB alone. Who may read what: `perdure access`. It speaks plain HTTP: put it behind
    a proxy that speaks TLS where others than this machine can reach it.
    """
    settings = current_settings()
    asyncio.run(
        _serve(
            settings,
            host=settings.api_host if host is None else host,
            port=settings.api_port if port is None else port,
        )
    )


async def _serve(settings: "Settings", *, host: str, port: int) -> None:
    import uvicorn  # noqa: PLC0415 - takes long

    from api.app import create_app  # noqa: PLC0415

    verifier = _verifier(settings)
    async with opened_mongodb(settings) as store:
        await store.verify()  # without its indexes, each page would read whole collections
        app = create_app(store, verifier=verifier)
        listening = _listening(host, port)
        with listening:
            address = listening.getsockname()[1]
            note(f"History API at http://{host}:{address}, its document at /openapi.json")
            config = uvicorn.Config(app, log_level="warning", server_header=False)
            await uvicorn.Server(config).serve(sockets=[listening])


def _verifier(settings: "Settings") -> "JwtVerifier | None":
    from api.authentication import jwt_verifier  # noqa: PLC0415

    try:
        return jwt_verifier(settings)
    except ValueError as error:
        raise WrongUsageError(str(error)) from error


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens, so that the port is known before anybody is told of it.

    Raises:
        CommandError: the address cannot be had.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        message = (
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another one with "
            "--host and --port"
        )
        raise CommandError(message) from error
