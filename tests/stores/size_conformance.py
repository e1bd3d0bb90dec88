"""What every `StepStore` without a media store must do with what is too large."""

import pytest

from stores.errors import StoreError
from stores.protocols import StepStore
from tests.stores.records import snapshot
from tests.stores.writer import Execution, RunScript, request


class SizeConformance:
    """The limit of a message."""

    async def test_a_message_that_is_too_large_is_refused_and_the_largest_is_kept(
        self, store: StepStore
    ) -> None:
        script, execution = RunScript(), Execution()
        script.messages = [request("a" * 16_750_000)]
        await store.commit(execution.commit(script.snapshot(1, 0)))
        latest = await store.latest_snapshot(run_id="run-1")
        assert latest is not None
        assert latest.messages == script.messages
        too_large = request("a" * 16_770_000)
        with pytest.raises(StoreError, match=r"message 1 of run 'run-1' has 16770\d* bytes"):
            await store.save_snapshot(snapshot([script.messages[0], too_large]))
        script.messages.append(too_large)
        result = await store.commit(
            execution.commit(script.snapshot(2, 1), script.event("run_failed", 2))
        )
        assert [(each.index, each.error_type) for each in result.refused()] == [
            (0, "MessageTooLargeError")
        ]
        assert len(await store.list_snapshot_summaries(run_id="run-1")) == 1
        assert [each.kind for each in await store.list_events(run_id="run-1")] == ["run_failed"]
