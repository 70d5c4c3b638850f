"""Is it right? A bundle against its checkpoint (needs torch and transformers), and engines against their bundle.

The names below are imported when they are first used, so that engines can be tested where torch is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "Boundary": "report",
    "Case": "report",
    "EngineReport": "engine",
    "Report": "report",
    "Tolerance": "report",
    "verify": "report",
    "verify_engine": "engine",
}
__all__ = ["Boundary", "Case", "EngineReport", "Report", "Tolerance", "verify", "verify_engine"]

if TYPE_CHECKING:
    from fastv_trt.verify.engine import EngineReport, verify_engine
    from fastv_trt.verify.report import Boundary, Case, Report, Tolerance, verify


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"fastv_trt.verify.{_HOME[name]}"), name)
    raise AttributeError(f"module 'fastv_trt.verify' has no attribute {name!r}")
