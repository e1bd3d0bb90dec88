"""The reference's search, by its interpreter: `python -m benchmarks.search_reference URI ...`.

It saves its messages, says so, and answers each line of its input, a query in JSON.
"""

import asyncio
import json
import sys
from datetime import timedelta
from importlib import import_module
from time import perf_counter
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.search_corpus import START, runs_of


async def main(uri: str, database: str, messages: int, shape: str) -> None:
    # Not installed where this is checked.
    searching: Any = import_module("pydantic_ai_harness.conversation_search")
    keeping: Any = import_module("pydantic_ai_harness.step_persistence")
    store: Any = keeping.MongoStepStore(db_url=uri, database=database)
    for number, snapshots in enumerate(runs_of(messages, shape)):
        run_id = f"run-{number:06}"
        at = START + timedelta(minutes=number)
        record = keeping.RunRecord(run_id=run_id, conversation_id="bench", started_at=at)
        await store.register_run(record)
        for step, history in enumerate(snapshots):
            saved = keeping.ContinuableSnapshot(
                run_id=run_id, step_index=step, messages=history, conversation_id="bench",
                timestamp=at + timedelta(seconds=step),
            )  # fmt: skip
            await store.save_snapshot(saved)
    toolset: Any = searching.ConversationSearchToolset(
        searching.SnapshotHistorySource(store), tool_id="bench", max_matches=10, context_lines=5,
        bm25_k1=1.5, bm25_b=0.75, scope="conversation",
    )  # fmt: skip
    context = cast("Any", SimpleNamespace(conversation_id="bench"))
    print(json.dumps({"saved": messages}), flush=True)
    for line in sys.stdin:
        start = perf_counter()
        answer = await toolset.search_conversation_history(context, json.loads(line))
        print(json.dumps({"seconds": perf_counter() - start, "answer": answer}), flush=True)


if __name__ == "__main__":
    uri, database, messages, shape = sys.argv[1:]
    asyncio.run(main(uri, database, int(messages), shape))
