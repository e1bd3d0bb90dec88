"""What every `StepStore` must do."""

from tests.stores.annotation_conformance import AnnotationConformance
from tests.stores.attention_conformance import AttentionConformance
from tests.stores.commit_conformance import CommitConformance
from tests.stores.continuation_conformance import (
    ClaimConformance,
    ContinuingConformance,
    LostClaimConformance,
    UnresolvedConformance,
)
from tests.stores.decided_conformance import DecidedConformance
from tests.stores.lost_task_conformance import ResetConformance, SupersedeConformance
from tests.stores.outside_conformance import OutsideConformance
from tests.stores.row_conformance import EffectConformance, EventConformance, SnapshotConformance
from tests.stores.run_conformance import LifeConformance, RunConformance, WorkspaceConformance
from tests.stores.search_conformance import SearchConformance


class StepStoreConformance(
    RunConformance,
    WorkspaceConformance,
    EventConformance,
    SnapshotConformance,
    EffectConformance,
    ContinuingConformance,
    LostClaimConformance,
    UnresolvedConformance,
    ClaimConformance,
    DecidedConformance,
    AnnotationConformance,
    AttentionConformance,
    CommitConformance,
    SupersedeConformance,
    ResetConformance,
    OutsideConformance,
    LifeConformance,
    SearchConformance,
):
    """All of it."""
