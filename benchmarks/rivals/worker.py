"""One rival in a process of its own: it loads once, then answers "NAME STEPS IDS" lines with what a run took.

The parent (compare.py) holds all workers and lets one run at a time, so that rounds alternate and no two ever run
together. Whatever a library prints goes to stderr; stdout carries the answers alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Run = Callable[[list[int], int], tuple[float, list[float], list[int]]]
"""(prompt ids, decode steps) -> seconds of prefill, seconds of each step, token ids: the first and each step's."""


def serve(rivals: dict[str, Run], about: dict[str, Any]) -> None:
    """Announce the rivals, then serve until stdin closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"rivals": list(rivals), "about": about}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        prefill, steps, tokens = rivals[asked["rival"]](asked["ids"], asked["steps"])
        print(json.dumps({"prefill": prefill, "steps": steps, "tokens": tokens}), file=answers, flush=True)
