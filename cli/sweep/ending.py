"""Imported by the process that forks workers, and by no other: it then ends with the sweep.

Each worker asks the same for itself, so nothing is left behind, however the sweep ends, not even a
worker that is frozen.
"""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have this process killed when the one that started it ends; does nothing but on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


end_with_parent()
