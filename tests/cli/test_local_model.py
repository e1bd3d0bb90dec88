"""The small model of `perdure dev --local-model`."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from pydantic_ai import Agent

from cli.local_model import LocalModelServer
from cli.processes import LocalServerError


def test_without_the_extra_the_way_to_install_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)  # as if it were not installed
    with pytest.raises(LocalServerError, match=r"requirements/local-model\.txt"):
        LocalModelServer(tmp_path)


@pytest.mark.live
@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs the extra local-model")
async def test_it_answers_as_soon_as_it_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = LocalModelServer(tmp_path)
    await server.start()
    try:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        async with Agent(server.environment["PERDURE_MODEL"]) as agent:
            result = await agent.run("Say hello.", model_settings={"max_tokens": 8})
    finally:
        await server.stop()
    assert result.output
    assert 0 < result.usage.output_tokens <= 8
    assert server.exit_code == 0
