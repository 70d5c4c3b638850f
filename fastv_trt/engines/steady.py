"""Runs a Python module with as little left to chance as can be had without privileges: `python steady.py MODULE`.

Three things are taken away from chance: where memory lies (address randomization), which thread runs first (one CPU,
and a scheduling policy in which a thread runs until it waits) and the order of sets (hash seeds). That policy takes
CAP_SYS_NICE, which root has and most users lack; without it the next best one is set, in which a thread that wakes up
does not interrupt another one, but other programs do. Started by path; imports nothing of the package.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress

NO_RANDOMIZATION = 0x0040000  # ADDR_NO_RANDOMIZE, sys/personality.h
QUERY = 0xFFFFFFFF
SEED = {"PYTHONHASHSEED": "0"}


def is_steady() -> bool:
    """Whether this process was started this way, and the system allowed all of it."""
    if not sys.platform.startswith("linux"):
        return False
    current = ctypes.CDLL(None).personality(QUERY)
    return (
        current != -1
        and bool(current & NO_RANDOMIZATION)
        and len(os.sched_getaffinity(0)) == 1
        and os.sched_getscheduler(0) == os.SCHED_FIFO
    )


def main() -> None:
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None)
        libc.personality(libc.personality(QUERY) | NO_RANDOMIZATION)  # some containers refuse
        with suppress(OSError):
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.execve(sys.executable, [sys.executable, "-P", "-m", *sys.argv[1:]], os.environ | SEED)


if __name__ == "__main__":
    main()
