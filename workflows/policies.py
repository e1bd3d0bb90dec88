"""Timeouts and retry policies, each with its reason."""

from datetime import timedelta

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityConfig

LOCAL_COMMIT_TIMEOUT = timedelta(seconds=2)
"""One short local attempt: a healthy commit takes milliseconds, and a longer attempt would keep the
workflow task open, which holds up updates and other runs of the worker."""

LOCAL_COMMIT_RETRIES = RetryPolicy(maximum_attempts=1)
"""The regular activity takes over; local retries would keep the workflow task open."""

COMMIT_TIMEOUT = timedelta(seconds=10)
"""Of one regular attempt; the server retries it."""

COMMIT_RETRIES = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=2),
    maximum_attempts=0,
)
"""Without a bound: a database that is away pauses a run and never loses it. Capped at two seconds,
so that the run goes on soon after the database is back."""

LARGEST_REGULAR_COMMIT_BYTES = 1024 * 1024
"""Encoded. A commit is in the history itself, not stored beside it: the store that is away would be
asked for both. The server refuses an activity input of 2 MiB; a commit that could come near is only
attempted locally, where its input does not travel."""

REPEATED_COMMIT_TIMEOUT = timedelta(milliseconds=500)
"""Of a repeated local attempt: an update that comes in meanwhile is answered after it."""

SHORT_REPEATS = 40
"""So many of them, three minutes, in which a store that was away has come back. Then the store is
rather too slow for a commit of that size, and every second one gets the time of a first one."""


LONGEST_COMMIT_PAUSE = timedelta(seconds=5)
"""Between local attempts of a commit that is too large for the server."""


def local_commit_timeout(repeats: int) -> timedelta:
    """Of a local attempt after so many repeated ones; the first has none before it."""
    is_short = 0 < repeats <= SHORT_REPEATS or repeats % 2 == 1
    return REPEATED_COMMIT_TIMEOUT if is_short else LOCAL_COMMIT_TIMEOUT


READ_RETRIES = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    maximum_interval=timedelta(seconds=2),
    maximum_attempts=0,
)
"""Reads of the store wait for it as commits do."""

READ_TIMEOUT = timedelta(seconds=30)
"""Of one attempt to load a history."""

TOOL_ATTEMPTS = 5
"""Most attempts of a tool activity whose worker is lost."""

LONGEST_ATTEMPT_PAUSE = timedelta(seconds=10)
"""Between attempts of a `once` tool: they only ask what became of the first."""

HEARTBEAT_TIMEOUT = timedelta(seconds=5)
"""A worker that is lost is noticed so soon; it beats three times in this."""

RECONCILE_TIMEOUT = timedelta(minutes=1)
"""Of one look at the outside world."""

RECONCILE_RETRIES = RetryPolicy(maximum_attempts=3)
"""Then a person has to look."""

TOOL_ACTIVITY = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=10),
    heartbeat_timeout=HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_attempts=TOOL_ATTEMPTS),
)
"""Tools heartbeat by themselves (`activities.heartbeat`), so a lost worker is noticed in five
seconds however long the tool may take."""

MODEL_ACTIVITY = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=10),
    heartbeat_timeout=timedelta(seconds=15),
    retry_policy=RetryPolicy(maximum_attempts=TOOL_ATTEMPTS),
)
"""A model may think for minutes; the heartbeat, not the timeout, notices a lost worker."""

AWAIT_RUN_TIMEOUT = timedelta(days=7)
"""Of waiting for a run that goes on by itself; its worker's loss is noticed by the heartbeat."""

NAMING_TIMEOUT = timedelta(seconds=90)
"""Of one attempt; the namer gives up after 60 s by itself."""

NAMING_RETRIES = RetryPolicy(maximum_attempts=2)
"""Then the next turn tries again."""
