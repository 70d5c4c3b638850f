"""The machine that was measured: what it is, and what else it did meanwhile."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from fastv_trt import __version__

NOISY = 0.05
"""Share of the machine that others took, or spread of R = 0, from which on we say so."""
_LIBRARIES = ("numpy", "onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt-rtx")


@dataclass
class Noise:
    """What else the machine did while we measured.

    Attributes:
        others: share of all cores' time that other processes took; None where it cannot be read.
        spread: interquartile range of the R = 0 prefill over its median.
    """

    others: float | None = None
    spread: float = 0.0

    @property
    def noisy(self) -> bool:
        return (self.others or 0.0) > NOISY or self.spread > NOISY

    def __str__(self) -> str:
        others = "unknown" if self.others is None else f"{self.others:.0%}"
        verdict = "the machine was NOISY: repeat on a quiet one" if self.noisy else "the machine was quiet"
        return f"{verdict} (other processes took {others} of its cores; R=0 varied by {self.spread:.1%})"


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def watching(noise: Noise) -> Iterator[None]:
    """Fill in the share of the cores this process may use that other processes took."""
    before, own, started = _busy(), time.process_time(), time.perf_counter()
    yield
    after = _busy()
    if before is not None and after is not None:
        others = after - before - (time.process_time() - own)
        noise.others = max(0.0, others / (cores() * (time.perf_counter() - started)))


def _busy() -> float | None:
    """Seconds that the cores of this process were busy or stolen since boot; None where it cannot be read."""
    try:
        lines = Path("/proc/stat").read_text(encoding="utf-8").splitlines()
        mine = os.sched_getaffinity(0)
    except (OSError, AttributeError):
        return None
    ticks = 0
    for words in (line.split() for line in lines if line.startswith("cpu")):
        if words[0][3:].isdigit() and int(words[0][3:]) in mine:
            user, nice, system, _, _, irq, soft, steal = (int(word) for word in words[1:9])
            ticks += user + nice + system + irq + soft + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def peak_memory() -> int:
    """Peak resident memory of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else 1024 * peak


def processor() -> str:
    """The CPU's name."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _cpuinfo(key: str) -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), None)


def machine(threads: int | None) -> dict[str, Any]:
    """Device, clocks, threads and library versions, as JSON."""
    from fastv_trt import nvidia

    clock = _cpuinfo("cpu MHz")
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": processor(),
        "clock_mhz": None if clock is None else float(clock),
        "cores": cores(),
        "threads": threads or cores(),
        "gpus": [vars(gpu) for gpu in nvidia.gpus().devices],
        "system": platform.platform(terse=True),
        "versions": {"python": platform.python_version(), "fastv-trt": __version__, **found},
    }
