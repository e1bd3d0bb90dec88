"""How much memory something took at its peak, of this process."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PROCESS = Path("/proc/self")


@dataclass
class Growth:
    """Filled in at the end; 0 where the system does not tell."""

    grown_bytes: int = 0


@contextmanager
def growth_of_peak() -> Generator[Growth]:
    """What the process has at its peak more than at the beginning."""
    growth = Growth()
    if not (_PROCESS / "clear_refs").exists():
        yield growth
        return
    (_PROCESS / "clear_refs").write_text("5")  # the peak counts from here
    before = _resident_bytes("VmRSS")
    yield growth
    growth.grown_bytes = _resident_bytes("VmHWM") - before


def _resident_bytes(name: str) -> int:
    lines = (_PROCESS / "status").read_text().splitlines()
    (line,) = (each for each in lines if each.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
