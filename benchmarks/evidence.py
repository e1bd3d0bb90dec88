"""All that is stored of a run, for comparison with another run of the same plan."""

from pydantic_ai.messages import ModelMessagesTypeAdapter

from stores.protocols import StepStore

STAMPS = {"timestamp", "run_id", "conversation_id"}


async def evidence_of(store: StepStore, run_id: str) -> list[str]:
    """All that is stored of a run, without times and ids, in its order."""
    events = await store.list_events(run_id=run_id)
    effects = await store.list_tool_effects(run_id=run_id)
    summaries = await store.list_snapshot_summaries(run_id=run_id)
    latest = await store.latest_snapshot(run_id=run_id)
    messages = latest.messages if latest else []
    stamps = dict.fromkeys(STAMPS, True)
    return [
        *(f"{each.sequence} {each.idempotency_key}" for each in events),
        *(f"{each.sequence} {each.step_index}/{each.call_index} {each.status}" for each in effects),
        *(f"{each.sequence} {each.idempotency_key} {each.message_count}" for each in summaries),
        *(
            ModelMessagesTypeAdapter.dump_json(
                [message], exclude={0: {**stamps, "parts": {"__all__": {"timestamp"}}}}
            ).decode()
            for message in messages
        ),
    ]
