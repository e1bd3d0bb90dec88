"""What a run's recorder has counted, as the run's next execution is told."""

from pydantic import BaseModel, ConfigDict


class RecordingState(BaseModel):
    """Counts of a run, and the newest snapshot of it. Frozen: histories hold it.

    `step_index` is the step whose model request is to be made. `ordinals` are the counts of that
    step: step, kind, call index, how many. The snapshot is named by its sequence, `snapshot_key`
    makes sure of it; `ranges` are its positions in the run's message log.
    """

    model_config = ConfigDict(frozen=True)

    step_index: int
    next_sequence: int
    saves: int
    next_position: int
    snapshot_sequence: int
    snapshot_key: str
    ranges: tuple[tuple[int, int], ...]
    ordinals: tuple[tuple[int, str, int | None, int], ...] = ()
