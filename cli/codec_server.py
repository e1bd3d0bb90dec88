"""`perdure codec-server`: lets Temporal's pages and command line read payloads."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connections import current_settings
from cli.failures import WrongUsageError
from cli.output import note
from stores.errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from temporalio.api.common.v1 import Payload
    from temporalio.converter import DataConverter, PayloadCodec

PORT = 8234
"""Beside that of Temporal's own pages."""

TEMPORAL_PAGES = "http://127.0.0.1:8233,http://localhost:8233"

LARGEST_REQUEST_BYTES = 16 * 1024 * 1024

MAX_AGE_SECONDS = 600
"""So long a browser need not ask again whether it may."""


def codec_server_command(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = PORT,
    origins: Annotated[
        str,
        typer.Option(
            envvar="PERDURE_CODEC_ORIGINS",
            help="Pages that may ask, comma-separated: where Temporal's are.",
        ),
    ] = TEMPORAL_PAGES,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="PERDURE_CODEC_TOKEN",
            help="What callers must send as `Authorization: Bearer`; needed beyond this machine.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve Temporal's remote codec protocol, so that its pages show what payloads say.

    Whoever may ask reads everything: prompts, answers, results of tools. In Temporal's pages set
    the address under "Data encoder"; on its command line pass --codec-endpoint.
    """
    if host not in {"127.0.0.1", "::1", "localhost"} and not token:
        message = (
            f"--host {host} can be reached from other machines, and whoever asks reads everything; "
            "set PERDURE_CODEC_TOKEN to a secret, which callers then send"
        )
        raise WrongUsageError(message)
    import uvicorn  # noqa: PLC0415 - takes long

    from converter import build_data_converter, close_payloads  # noqa: PLC0415

    settings = current_settings()
    converter = build_data_converter(settings)
    # What is encoded here has no workflow yet whose payload it could be: it stays in the history.
    inline = build_data_converter(settings.model_copy(update={"payload_storage": False}))
    allowed = tuple(each.strip() for each in origins.split(",") if each.strip())
    app = codec_app(converter, inline.payload_codec, origins=allowed, token=token)

    async def serve() -> None:
        try:
            await uvicorn.Server(
                uvicorn.Config(app, host=host, port=port, log_level="warning")
            ).serve()
        finally:
            await close_payloads(converter)

    note(f"Codec server at http://{host}:{port}; Ctrl-C stops it")
    asyncio.run(serve())


def codec_app(
    converter: "DataConverter",
    codec: "PayloadCodec | None",
    *,
    origins: tuple[str, ...],
    token: str | None,
) -> "Starlette":
    """The two routes of the protocol, for pages of these origins.

    Args:
        converter: decodes.
        codec: encodes.
        origins: of pages that browsers let ask.
        token: what every caller must send; `None`: nothing.
    """
    from starlette.applications import Starlette  # noqa: PLC0415
    from starlette.middleware import Middleware  # noqa: PLC0415
    from starlette.middleware.cors import CORSMiddleware  # noqa: PLC0415
    from starlette.routing import Route  # noqa: PLC0415
    from temporalio.common import RawValue  # noqa: PLC0415

    async def decoded(payloads: list["Payload"]) -> list["Payload"]:
        found: list[RawValue] = await converter.decode(payloads, [RawValue] * len(payloads))
        return [each.payload for each in found]

    async def encoded(payloads: list["Payload"]) -> list["Payload"]:
        return payloads if codec is None else await codec.encode(payloads)

    async def decode(request: "Request") -> "Response":
        return await _answer(request, token, decoded)

    async def encode(request: "Request") -> "Response":
        return await _answer(request, token, encoded)

    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["POST"],
        allow_headers=["authorization", "content-type", "x-namespace"],
        allow_credentials=True,
        max_age=MAX_AGE_SECONDS,
    )
    routes = [
        Route("/decode", decode, methods=["POST"]),
        Route("/encode", encode, methods=["POST"]),
    ]
    return Starlette(routes=routes, middleware=[cors])


async def _answer(
    request: "Request",
    token: str | None,
    change: "Callable[[list[Payload]], Awaitable[list[Payload]]]",
) -> "Response":
    """The payloads of a request, changed; or what is wrong, in words and without content."""
    from google.protobuf import json_format  # noqa: PLC0415
    from starlette.responses import PlainTextResponse, Response  # noqa: PLC0415
    from temporalio.api.common.v1 import Payloads  # noqa: PLC0415

    if token is not None:
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {token}".encode()):
            return PlainTextResponse("send the token of this codec server", 401)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_REQUEST_BYTES:
            return PlainTextResponse(f"at most {LARGEST_REQUEST_BYTES} bytes at once", 413)
    try:
        asked = json_format.Parse(bytes(body), Payloads())
    except (json_format.ParseError, UnicodeDecodeError):
        return PlainTextResponse("send Temporal's Payloads as JSON", 400)
    try:
        changed = Payloads(payloads=await change(list(asked.payloads)))
    except StoreUnavailableError as error:
        return PlainTextResponse(str(error), 503)
    except StoreError as error:
        return PlainTextResponse(str(error), 422)
    return Response(json_format.MessageToJson(changed), media_type="application/json")
