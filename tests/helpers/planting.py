"""A workflow that sends commits which a well-behaved one never sends."""

from datetime import timedelta
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.boundaries import (
        AppendEventRequest,
        CommitBoundariesResult,
        CommitHeader,
        RegisterRunRequest,
    )
    from stores.operations import AppendEvent, RegisterRun


@workflow.defn(name="plant")
class PlantWorkflow:
    """One repeat, one contradiction and one commit that comes too late."""

    @workflow.run
    async def run(self, task_queue: str) -> list[str]:
        """What became of each commit, in their order."""
        self._queue = task_queue
        run_id = workflow.info().workflow_id
        first = AppendEvent(run_id=run_id, sequence=1, key="k", event="run_started", step_index=0)
        other = first.model_copy(update={"step_index": 7, "sequence": 2})
        register = RegisterRun(run_id=run_id, sequence=0, registration_id="planted")
        done = [
            await self._send(
                "register_run", RegisterRunRequest(**self._at(1, 100), operation=register)
            )
        ]
        for number, history_length, event in (
            (2, 100, first),
            (2, 100, first),
            (3, 200, other),
            (4, 150, other),
        ):
            place = self._at(number, history_length)
            request = AppendEventRequest(**place, operation=event)
            done.append(await self._send("append_event", request))
        return [
            f"{each.verdict} {','.join(outcome.disposition for outcome in each.outcomes)}".strip()
            for each in done
        ]

    def _at(self, number: int, history_length: int) -> dict[str, Any]:
        info = workflow.info()
        return {
            "execution_id": info.original_execution_run_id,
            "number": number,
            "history_length": history_length,
            "queued_at": info.start_time,
        }

    async def _send(self, name: str, request: CommitHeader) -> CommitBoundariesResult:
        result: CommitBoundariesResult = await workflow.execute_activity(
            name,
            request,
            result_type=CommitBoundariesResult,
            task_queue=self._queue,
            start_to_close_timeout=timedelta(seconds=20),
        )
        return result
