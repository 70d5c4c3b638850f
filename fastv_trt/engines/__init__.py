"""ONNX graphs -> TensorRT or TensorRT-RTX plans. Needs onnx, and one of the two libraries to compile.

The names below are imported when they are first used, so that `doctor` works where onnx is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "BuildLimits": "fastv_trt.limits",
    "Finding": "fastv_trt.engines.lint",
    "Range": "fastv_trt.limits",
    "Report": "fastv_trt.engines.examination",
    "build": "fastv_trt.engines.builder",
    "check": "fastv_trt.engines.lint",
    "examine": "fastv_trt.engines.examination",
    "prepare": "fastv_trt.engines.builder",
}
__all__ = ["BuildLimits", "Finding", "Range", "Report", "build", "check", "examine", "prepare"]

if TYPE_CHECKING:
    from fastv_trt.engines.builder import build, prepare
    from fastv_trt.engines.examination import Report, examine
    from fastv_trt.engines.lint import Finding, check
    from fastv_trt.limits import BuildLimits, Range


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'fastv_trt.engines' has no attribute {name!r}")
