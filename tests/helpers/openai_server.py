"""A server on this machine that speaks OpenAI's chat completions: what to answer is given to it.

Real provider clients run against it, streamed answers and failures included.
"""

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

MODEL = "test-model"


@dataclass(frozen=True)
class Reply:
    """One answer: a text, tool calls (name and arguments), or a failure's status.

    It is held back for `delay` seconds, or until the server is closed.
    """

    text: str | None = None
    calls: Sequence[tuple[str, dict[str, Any]]] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    delay: float = 0.0


class OpenAIServer:
    """Gives `replies` in order, then the last one again and again; remembers what it was asked."""

    def __init__(self, *replies: Reply) -> None:
        self.requests: list[dict[str, Any]] = []
        """The body of each request, in the order of arrival."""
        self.closed = threading.Event()
        self._replies = replies
        self._lock = threading.Lock()
        self._http = _HTTPServer(self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its base URL."""
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    def take(self, request: dict[str, Any]) -> Reply:
        """Remember a request and choose its reply."""
        with self._lock:
            reply = self._replies[min(len(self.requests), len(self._replies) - 1)]
            self.requests.append(request)
        return reply

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closed.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = False  # `server_close` waits for the requests, so none outlives its test

    def __init__(self, owner: OpenAIServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.owner = owner


class _Handler(BaseHTTPRequestHandler):
    server: _HTTPServer  # pyright: ignore[reportIncompatibleVariableOverride] - the one we made

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions":
            self._send(404, {"error": {"message": f"there is no {self.path}"}})
            return
        reply = self.server.owner.take(request)
        self.server.owner.closed.wait(reply.delay)
        if reply.status != 200:
            self._send(reply.status, {"error": {"message": "as asked for"}}, reply.headers)
        elif request.get("stream"):
            self._stream(reply)
        else:
            self._send(200, _completion(reply))

    def _send(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, reply: Reply) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()  # HTTP/1.0: the body ends with the connection
        for chunk in [*map(json.dumps, _chunks(reply)), "[DONE]"]:
            self.wfile.write(f"data: {chunk}\n\n".encode())
            self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


_USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def _completion(reply: Reply) -> dict[str, Any]:
    message = {"role": "assistant", "content": reply.text, "tool_calls": _calls(reply) or None}
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(reply)}
    return _envelope("chat.completion", choices=[choice], usage=_USAGE)


def _chunks(reply: Reply) -> Iterator[dict[str, Any]]:
    """The text by three characters, each call's arguments in two halves, the usage at the end."""
    text = reply.text or ""
    for start in range(0, len(text), 3):
        yield _chunk({"role": "assistant", "content": text[start : start + 3]})
    for index, call in enumerate(_calls(reply)):
        arguments = call["function"]["arguments"]
        half = len(arguments) // 2
        first = {**call["function"], "arguments": arguments[:half]}
        yield _chunk({"tool_calls": [{**call, "index": index, "function": first}]})
        rest = {"index": index, "function": {"arguments": arguments[half:]}}
        yield _chunk({"tool_calls": [rest]})
    yield _chunk({}, finish_reason=_finish_reason(reply))
    yield _envelope("chat.completion.chunk", choices=[], usage=_USAGE)


def _chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return _envelope("chat.completion.chunk", choices=[choice])


def _envelope(kind: str, **content: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": MODEL, **content}


def _calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{index}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for index, (name, arguments) in enumerate(reply.calls)
    ]


def _finish_reason(reply: Reply) -> str:
    return "tool_calls" if reply.calls else "stop"
