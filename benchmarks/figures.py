"""Figures: one line of the table each, and what they are computed with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "missed", ""]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured figure.

    Attributes:
        budget: at most this; `None` is for information.
        judged: what is held against the budget where that is not `measured` itself.
        reference: the same, measured on the reference.
        detail: what else there is to say, such as percentiles.
    """

    name: str
    unit: str
    measured: float
    budget: float | None = None
    judged: float | None = None
    reference: float | None = None
    detail: str = ""

    @property
    def verdict(self) -> Verdict:
        """Whether it is within its budget."""
        if self.budget is None:
            return ""
        judged = self.measured if self.judged is None else self.judged
        return "ok" if judged <= self.budget else "missed"

    @property
    def ratio(self) -> float | None:
        """Measured over the reference's."""
        return self.measured / self.reference if self.reference else None


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """How fast the machine was just before a benchmark: times in ms, `load` of the last minute."""

    load: float
    ping_median: float
    ping_p95: float
    workflow_median: float
    workflow_p95: float


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share (0 to 1) of the values lies, interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return percentile(values, 0.5)
