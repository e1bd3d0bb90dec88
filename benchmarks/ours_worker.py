"""Our side as a process, for faults that end it: Perdure's worker with the charging agent."""

import asyncio
import sys

from benchmarks.charging import make_charging_agent
from benchmarks.workflow import WORKFLOWS
from client import connect
from settings import Settings
from stores.opening import open_step_store
from worker import build_worker
from workflows.durable import durable


async def _work(mongodb_uri: str, database: str, address: str, task_queue: str) -> None:
    client = await connect(Settings(temporal_address=address))
    store = open_step_store("mongodb", db_url=mongodb_uri, database=database)
    await store.initialise()
    agents = [make_charging_agent(durable())]
    settings = Settings(task_queue=task_queue)
    async with build_worker(client, store, agents, settings, workflows=WORKFLOWS):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_work(*sys.argv[1:]))
