"""Workflows that show the sandbox, which executes this module again for each of them."""

import time
from datetime import timedelta

from temporalio import activity, workflow

LOCAL_ACTIVITIES = 10


@workflow.defn(name="reads_the_clock")
class ClockWorkflow:
    """Does what a workflow must not."""

    @workflow.run
    async def run(self) -> float:
        """The time, where nobody stops it."""
        return time.time()


@activity.defn(name="repeat")
async def repeat(word: str) -> str:
    """The word."""
    return word


@workflow.defn(name="calls_local_activities")
class LocalActivitiesWorkflow:
    """Calls one local activity after the other."""

    @workflow.run
    async def run(self) -> str:
        """The word that it began with."""
        word = "word"
        for _ in range(LOCAL_ACTIVITIES):
            word = await workflow.execute_local_activity(
                repeat, word, start_to_close_timeout=timedelta(seconds=10)
            )
        return word
