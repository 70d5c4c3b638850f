"""ONNX graphs -> TensorRT or TensorRT-RTX plans. Needs onnx, and one of the two libraries to compile."""

from __future__ import annotations

from fastv_trt.engines.build import build, prepare
from fastv_trt.engines.examine import Report, examine
from fastv_trt.engines.limits import BuildLimits, Range
from fastv_trt.engines.lint import Finding, check

__all__ = ["BuildLimits", "Finding", "Range", "Report", "build", "check", "examine", "prepare"]
