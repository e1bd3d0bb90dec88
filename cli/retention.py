"""`perdure retention`: say what the policies would take out, take it out, or have it done."""

import asyncio
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connections import connected_client, current_settings, opened_mongodb
from cli.failures import WrongUsageError
from cli.options import AsJson
from cli.output import note, print_json, print_text

if TYPE_CHECKING:
    from stores.retention_policies import Retained

BETWEEN_NOTES = timedelta(seconds=2)

SCHEDULE = "perdure-retention"
"""Id of the schedule, and the first part of its workflows' ids."""

retention_app = typer.Typer(
    name="retention",
    help="What is kept of runs that have ended.",
    no_args_is_help=True,
    add_completion=False,
    epilog="Example: perdure retention plan",
)


@retention_app.command("plan", epilog="Example: perdure retention plan")
def plan_command(*, as_json: AsJson = False) -> None:
    """Say what `apply` would take out; change nothing."""
    _tell(asyncio.run(_run(is_dry=True)), as_json=as_json)


@retention_app.command("apply", epilog="Example: perdure retention apply --schedule 24h")
def apply_command(
    *,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Have workers do it, each so often: 24h, 7d. `off` ends that.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Take out what the policies of PERDURE_RETENTION do not keep, then what nothing refers to.

    May be stopped and begun again, beside running workers. Runs that have not ended, or ended
    within the time for which Temporal keeps them, stay as they are.
    """
    if schedule is not None:
        print_text(asyncio.run(_schedule(schedule)))
        return
    _tell(asyncio.run(_run(is_dry=False)), as_json=as_json)


def _tell(done: "dict[str, Retained]", *, as_json: bool) -> None:
    from retaining import counts_of, in_words  # noqa: PLC0415

    if as_json:
        print_json({name: counts_of(each) for name, each in done.items()})
        return
    for name, each in done.items():
        print_text(f"{name}: {in_words(each)}")
    if not done:
        note("No workspace has a policy and runs.")


async def _run(*, is_dry: bool) -> "dict[str, Retained]":
    from retaining import retain  # noqa: PLC0415
    from stores.retention_policies import load_policies  # noqa: PLC0415

    settings = current_settings()
    policies = load_policies(settings.retention)
    if not policies:
        message = (
            "PERDURE_RETENTION is not set: everything is kept. Name a policy for a workspace, such "
            """as '{"default": {"snapshots": 3, "details_days": 30}}', or '*' for all"""
        )
        raise WrongUsageError(message)
    client = await connected_client(settings)
    async with opened_mongodb(settings) as store:
        await store.verify()  # without its indexes, each page would read whole collections
        return await retain(store, policies, client, is_dry=is_dry, tell=_Teller())


class _Teller:
    """Notes how far it has come, every now and then."""

    def __init__(self) -> None:
        self._next_at = monotonic() + BETWEEN_NOTES.total_seconds()

    def __call__(self, words: str) -> None:
        """Hear of a page."""
        if monotonic() >= self._next_at:
            self._next_at = monotonic() + BETWEEN_NOTES.total_seconds()
            note(words)


async def _schedule(every: str) -> str:
    from temporalio.client import (  # noqa: PLC0415
        Schedule,
        ScheduleActionStartWorkflow,
        ScheduleAlreadyRunningError,
        ScheduleIntervalSpec,
        ScheduleOverlapPolicy,
        SchedulePolicy,
        ScheduleSpec,
        ScheduleUpdate,
    )
    from temporalio.service import RPCError, RPCStatusCode  # noqa: PLC0415

    from stores.retention_policies import load_policies  # noqa: PLC0415
    from workflows import names  # noqa: PLC0415
    from workflows.retention import RetentionInput  # noqa: PLC0415

    settings = current_settings()
    load_policies(settings.retention)
    client = await connected_client(settings)
    handle = client.get_schedule_handle(SCHEDULE)
    if every == "off":
        try:
            await handle.delete()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return f"there was no schedule {SCHEDULE!r}"
        return f"schedule {SCHEDULE!r} is taken away"
    wanted = Schedule(
        action=ScheduleActionStartWorkflow(
            names.RETENTION, RetentionInput(), id=SCHEDULE, task_queue=settings.task_queue
        ),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=_interval(every))]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP),
    )
    try:
        await client.create_schedule(SCHEDULE, wanted)
    except ScheduleAlreadyRunningError:
        await handle.update(lambda _: ScheduleUpdate(schedule=wanted))
    return (
        f"schedule {SCHEDULE!r}: every {every}, by workers of task queue {settings.task_queue!r}, "
        "with the policies of their settings"
    )


def _interval(text: str) -> timedelta:
    units = {"h": timedelta(hours=1), "d": timedelta(days=1)}
    number, unit = text[:-1], text[-1:]
    if unit not in units or not number.isdigit() or int(number) < 1:
        message = f"--schedule {text!r} is no time; write hours or days, such as 24h or 7d"
        raise WrongUsageError(message)
    return int(number) * units[unit]
