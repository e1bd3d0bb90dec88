"""Ending and deleting what Temporal has of runs that are about to be removed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from cli.failures import CommandError

if TYPE_CHECKING:
    from stores.mongo.removing import RunToRemove

Thing = TypeVar("Thing")

END_WITHIN = timedelta(seconds=30)
"""Of being cancelled: a tool hears of it with its next heartbeat."""

LISTED_WITHIN = timedelta(seconds=30)
"""Of having ended: the list follows after a moment."""

BETWEEN_LOOKS = 0.1

AT_ONCE = 20

IDS_OF_A_QUESTION = 20


class OpenExecutionsError(CommandError):
    """Something that is to be removed still runs."""


class ExecutionsRemoval:
    """Deletes the executions of runs; open ones are refused, or cancelled first."""

    def __init__(self, client: Client, *, cancels: bool) -> None:
        self._client = client
        self._cancels = cancels

    async def __call__(self, runs: Sequence["RunToRemove"]) -> int:
        """Have all deleted that Temporal has of these; how many executions.

        The server does so by and by: of what has just ended, in a minute or two.

        Raises:
            OpenExecutionsError: some are open, and are not to be cancelled, or did not end.
                Nothing was deleted.
        """
        await self.end([each.run_id for each in runs])
        deleted = 0
        for start in range(0, len(runs), IDS_OF_A_QUESTION):
            some = runs[start : start + IDS_OF_A_QUESTION]
            places = {(each.run_id, branch) for each in some for branch in each.branches}
            places |= await self._listed_as_ended([each.run_id for each in some])
            deleted += sum(await self._each(self._delete, sorted(places)))
        return deleted

    async def end(self, workflow_ids: Sequence[str]) -> None:
        """Return when none of these workflows is open.

        Raises:
            OpenExecutionsError: see `__call__`.
        """
        flags = await self._each(self._is_open, workflow_ids)
        still = _chosen(workflow_ids, flags)
        if still and not self._cancels:
            message = (
                f"still open in Temporal: {_named(still)}. Wait until they have ended, or say "
                "--cancel: then they are cancelled first. Nothing of these was removed"
            )
            raise OpenExecutionsError(message)
        for each in still:
            await self._cancel(each)
        until = monotonic() + END_WITHIN.total_seconds()
        while still:
            flags = await self._each(self._is_open, still)
            still = _chosen(still, flags)
            if still and monotonic() > until:
                message = (
                    f"{_named(still)} did not end within {END_WITHIN.total_seconds():.0f} s of "
                    "being cancelled: no worker runs, or a tool goes on. Nothing of these was "
                    "removed"
                )
                raise OpenExecutionsError(message)
            if still:
                await asyncio.sleep(BETWEEN_LOOKS)  # noqa: TID251 - the server tells nobody

    async def _each(
        self, ask: Callable[[Thing], Awaitable[bool]], things: Sequence[Thing]
    ) -> list[bool]:
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(thing: Thing) -> bool:
            async with slots:
                return await ask(thing)

        return list(await asyncio.gather(*(one(each) for each in things)))

    async def _is_open(self, workflow_id: str) -> bool:
        try:
            described = await self._client.get_workflow_handle(workflow_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return described.status is WorkflowExecutionStatus.RUNNING

    async def _cancel(self, workflow_id: str) -> None:
        try:
            await self._client.get_workflow_handle(workflow_id).cancel()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # it has ended
                raise

    async def _listed(
        self, workflow_ids: Sequence[str], only: str | None = None
    ) -> set[tuple[str, str]]:
        """Executions by workflow and run id, as far as the server lists them."""
        wanted = ", ".join(f"'{each}'" for each in workflow_ids if "'" not in each)
        if not wanted:
            return set()
        query = f"WorkflowId IN ({wanted})"
        found = self._client.list_workflows(f"{query} AND {only}" if only else query)
        return {(each.id, each.run_id) async for each in found}

    async def _listed_as_ended(self, workflow_ids: Sequence[str]) -> set[tuple[str, str]]:
        """The same once the list says that they have ended, which it does a moment later.

        An execution that is deleted before would come into the list again, and stay.
        """
        until = monotonic() + LISTED_WITHIN.total_seconds()
        while monotonic() < until:
            running = await self._listed(workflow_ids, "ExecutionStatus = 'Running'")
            if not running:
                break
            await asyncio.sleep(BETWEEN_LOOKS)  # noqa: TID251 - the server tells nobody
        return await self._listed(workflow_ids)

    async def _delete(self, place: tuple[str, str]) -> bool:
        """Whether there was such an execution."""
        workflow_id, run_id = place
        request = DeleteWorkflowExecutionRequest(
            namespace=self._client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
        )
        try:
            await self._client.workflow_service.delete_workflow_execution(request)
        except RPCError as error:
            # A branch that is no execution of Temporal's: a run outside a workflow, or in a tool.
            if error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}:
                return False
            raise
        return True


def _chosen(ids: Sequence[str], flags: Sequence[bool]) -> list[str]:
    return [each for each, is_chosen in zip(ids, flags, strict=True) if is_chosen]


def _named(ids: Sequence[str]) -> str:
    return ", ".join(map(repr, ids[:5])) + (f" and {len(ids) - 5} more" if ids[5:] else "")
