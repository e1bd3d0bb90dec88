"""What `perdure doctor` finds."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of `doctor`. A warning leaves a worker able to run; a problem does not."""

    status: Literal["ok", "warning", "problem"]
    about: str
    found: str
    fix: str | None = None
