"""What a workspace keeps of runs that have ended, and for how long."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from stores.errors import StoreConfigurationError
from stores.ranges import difference, union
from stores.rows import SnapshotRow

FILE_PREFIX = "file:"

ANY_WORKSPACE = "*"
"""Its policy is that of every workspace that has none of its own."""


class RetentionPolicy(BaseModel):
    """What stays of runs that have ended; what is not said stays for ever.

    Attributes:
        snapshots: the newest so many of each run stay, and the newest settled one.
        settled: which of the settled ones stay beside those: `newest`, or `all`.
        originals: a snapshot stays while it alone holds messages that a compaction took out.
        details_days: events, tool effects and live text go so long after the run has ended.
        runs_days: whole runs, and whole conversations, go so long after their last activity.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    snapshots: int | None = Field(default=None, ge=1)
    settled: Literal["newest", "all"] = "newest"
    originals: bool = True
    details_days: float | None = Field(default=None, gt=0)
    runs_days: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _check_sense(self) -> "RetentionPolicy":
        said = self.model_fields_set & {"settled", "originals"}
        if self.snapshots is None and said:
            names = " and ".join(sorted(said))
            message = f"{names} say which snapshots stay beside the newest `snapshots`; name those"
            raise ValueError(message)
        if self.details_days and self.runs_days and self.runs_days <= self.details_days:
            message = (
                f"runs_days is {self.runs_days:g} and details_days {self.details_days:g}: whole "
                "runs would be gone before their details; leave details_days out, or make it less"
            )
            raise ValueError(message)
        return self


Policies = Mapping[str, RetentionPolicy]
"""By workspace."""

_POLICIES = TypeAdapter(dict[str, RetentionPolicy])


def load_policies(source: str) -> Policies:
    """The policies of a setting: a JSON object by workspace, or `file:` and the path of one.

    Raises:
        StoreConfigurationError: it is no JSON, or a policy is none or contradicts itself.
    """
    text = source
    try:
        if source.startswith(FILE_PREFIX):
            text = Path(source.removeprefix(FILE_PREFIX)).read_text(encoding="utf-8")
        return _POLICIES.validate_python(json.loads(text or "{}"))
    except OSError as error:
        msg = f"PERDURE_RETENTION cannot be read: {error}"
        raise StoreConfigurationError(msg) from error
    except ValidationError as error:
        found = "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg'].removeprefix('Value error, ')}"
            for each in error.errors()
        )
        msg = f"PERDURE_RETENTION does not fit: {found}"
        raise StoreConfigurationError(msg) from error
    except ValueError as error:
        msg = f"PERDURE_RETENTION is no JSON: {error}"
        raise StoreConfigurationError(msg) from error


def policy_for(policies: Policies, workspace_id: str) -> RetentionPolicy | None:
    """The policy of a workspace; `None` keeps everything."""
    return policies.get(workspace_id, policies.get(ANY_WORKSPACE))


def expendable(stored: Sequence[SnapshotRow], policy: RetentionPolicy) -> list[SnapshotRow]:
    """The live snapshots of a run that has ended which the policy does not keep.

    Whatever it says, the newest one stays and the newest complete one: a run is continued from
    them.
    """
    if policy.snapshots is None:
        return []
    by_age = sorted(stored, key=lambda row: row.sequence)
    complete = [row for row in by_age if row.state == "complete"]
    settled = complete if policy.settled == "all" else complete[-1:]
    kept = {id(row) for row in (*by_age[-policy.snapshots :], *settled)}
    named = union([each for row in by_age if id(row) in kept for each in row.ranges])
    gone: list[SnapshotRow] = []
    # From the newest on: of two that hold what no other one does, the later one stays.
    for row in reversed([each for each in by_age if id(each) not in kept]):
        if policy.originals and difference(union(row.ranges), named):
            named = union([*named, *row.ranges])
        else:
            gone.append(row)
    return gone


@dataclass(frozen=True, kw_only=True)
class Retained:
    """What a retention took out so far, or would take out.

    Attributes:
        is_dry: nothing was changed.
        looked_at: runs that were examined, those of each pass.
        snapshots: that are left out from now on; their messages go with `perdure gc`.
        detailed: runs that lost events, effects and live text.
        rows: of those, together.
        runs: that went as a whole.
        conversations: likewise.
        unresolved: runs that are old enough, and stay since nobody knows what a call of theirs did.
    """

    is_dry: bool
    looked_at: int = 0
    snapshots: int = 0
    detailed: int = 0
    rows: int = 0
    runs: int = 0
    conversations: int = 0
    unresolved: int = 0

    def plus(self, **counts: int) -> "Retained":
        """With these added."""
        return replace(self, **{name: getattr(self, name) + n for name, n in counts.items()})

    @property
    def is_nothing(self) -> bool:
        """Whether all is as it was."""
        return not (self.snapshots or self.detailed or self.runs or self.conversations)


MARGIN = timedelta(hours=1)
"""Between the end of a run by its own record and what Temporal counts from."""
