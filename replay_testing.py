"""A pytest plugin for your own project: `pytest_plugins = ["replay_testing"]` in your conftest.py.

It gives the fixture `recordings`. A test names the runs that matter; with `PERDURE_RECORD=1` in the
environment those that are not recorded yet are run and recorded, on servers that the test starts;
otherwise what is recorded is replayed, without any server. `PERDURE_RECORD=again` records each once
more, beside the older recordings, as for a release: the older ones stay, and go on being replayed.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from pydantic_ai import Agent

from recordings import Recordings
from workflows.agent_run_models import AgentRunInput

VARIABLE = "PERDURE_RECORD"


class RecordedRuns(Recordings):
    """The recordings beside a test, in `histories/`."""

    async def replay(
        self,
        agents: Sequence[Agent[Any, Any]],
        *,
        workflows: Iterable[type] = (),
        activities: Iterable[Callable[..., object]] = (),
        **runs: AgentRunInput,
    ) -> None:
        """Replay these runs' recordings, or record them first where the environment says so.

        Args:
            agents: what the worker serves.
            workflows: your own workflow classes.
            activities: your own activities.
            runs: by name, what `agent_run` is started with.

        Raises:
            RecordingError: a run is not recorded, or this code takes it another way.
        """
        workflows, activities = [*workflows], [*activities]
        wish = os.environ.get(VARIABLE)
        wanted = {n: each for n, each in runs.items() if wish == "again" or not self.paths(n)}
        if wish and wanted:
            await self.record(agents, workflows=workflows, activities=activities, **wanted)
        for name in runs:
            await self.check(agents, name=name, workflows=workflows, activities=activities)


@pytest.fixture
def recordings(request: pytest.FixtureRequest) -> RecordedRuns:
    """The recordings in `histories/` beside the test's file."""
    return RecordedRuns(request.path.parent / "histories")
