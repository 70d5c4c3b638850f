"""ONNX graphs -> TensorRT or TensorRT-RTX plans. Needs onnx, and one of the two libraries to compile.

The names below are imported when they are first used, so that `doctor` works where onnx is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "BuildLimits": "limits",
    "Finding": "lint",
    "Range": "limits",
    "Report": "examination",
    "build": "builder",
    "check": "lint",
    "examine": "examination",
    "prepare": "builder",
}
__all__ = ["BuildLimits", "Finding", "Range", "Report", "build", "check", "examine", "prepare"]

if TYPE_CHECKING:
    from fastv_trt.engines.builder import build, prepare
    from fastv_trt.engines.examination import Report, examine
    from fastv_trt.engines.limits import BuildLimits, Range
    from fastv_trt.engines.lint import Finding, check


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"fastv_trt.engines.{_HOME[name]}"), name)
    raise AttributeError(f"module 'fastv_trt.engines' has no attribute {name!r}")
