"""Our side as a process, for loads: Perdure's worker with and without persistence."""

import asyncio
import signal

from benchmarks.ours import our_side, persisted_agent, plain_agent
from client import connect
from settings import Settings


async def _work(settings: Settings) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with our_side(
        await connect(settings),
        str(settings.mongodb_uri),
        [persisted_agent()],
        plain=[plain_agent()],
        database=settings.mongodb_database,
        task_queue=settings.task_queue,
    ):
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(_work(Settings()))
