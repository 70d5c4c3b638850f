"""Samples -> the operating point (K, R, ranking). Needs onnxruntime; torch only to cut at another K.

The names below are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "Budget": "budget",
    "Calibration": "recommend",
    "Grid": "points",
    "Point": "points",
    "Samples": "samples",
    "Settings": "sweep",
    "Table": "table",
    "calibrate": "recommend",
    "validate": "recommend",
}
__all__ = ["Budget", "Calibration", "Grid", "Point", "Samples", "Settings", "Table", "calibrate", "validate"]

if TYPE_CHECKING:
    from fastv_trt.calibration.budget import Budget
    from fastv_trt.calibration.points import Grid, Point
    from fastv_trt.calibration.recommend import Calibration, calibrate, validate
    from fastv_trt.calibration.samples import Samples
    from fastv_trt.calibration.sweep import Settings
    from fastv_trt.calibration.table import Table


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"fastv_trt.calibration.{_HOME[name]}"), name)
    raise AttributeError(f"module 'fastv_trt.calibration' has no attribute {name!r}")
