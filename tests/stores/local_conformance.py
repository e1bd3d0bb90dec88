"""What the stores on one machine must do: all but taking commits of a workflow back."""

import pytest

from stores.errors import StoreConfigurationError
from stores.protocols import StepStore
from tests.stores.annotation_conformance import AnnotationConformance
from tests.stores.asking import everything, started
from tests.stores.commit_conformance import CommitConformance
from tests.stores.continuation_conformance import (
    ClaimConformance,
    ContinuingConformance,
    UnresolvedConformance,
)
from tests.stores.row_conformance import EffectConformance, EventConformance, SnapshotConformance
from tests.stores.run_conformance import LifeConformance, RunConformance, WorkspaceConformance
from tests.stores.writer import Execution, at


class LocalStepStoreConformance(
    RunConformance,
    WorkspaceConformance,
    EventConformance,
    SnapshotConformance,
    EffectConformance,
    ContinuingConformance,
    UnresolvedConformance,
    ClaimConformance,
    AnnotationConformance,
    CommitConformance,
    LifeConformance,
):
    async def test_a_finish_moves_the_effect_that_an_earlier_branch_has_started(
        self, store: StepStore
    ) -> None:
        """Other branches come from resets, so here the commit is refused."""
        execution, script = await started(store)
        await store.commit(execution.commit(script.started(1)))
        before = await everything(store)
        reset = Execution(branch="branch-2", branch_time=at(60), number=2)
        with pytest.raises(
            StoreConfigurationError,
            match=r"commit 3 of execution 'execution-1' would adopt.*workflows need MongoDB",
        ):
            await store.commit(reset.commit(script.finished(1)))
        assert await everything(store) == before

    async def test_a_commit_in_place_of_a_lost_one_is_refused(self, store: StepStore) -> None:
        execution, script = await started(store)
        before = await everything(store)
        execution.next_task(number=0)
        with pytest.raises(StoreConfigurationError, match=r"would supersede.*need MongoDB"):
            await store.commit(execution.commit(script.event("run_failed", 0)))
        assert await everything(store) == before
