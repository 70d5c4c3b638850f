"""A bundle with smaller weights, measured on the user's samples. Needs onnx and onnxruntime; no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {"Quantized": "make", "Request": "make", "quantize": "make"}
__all__ = ["Quantized", "Request", "quantize"]

if TYPE_CHECKING:
    from fastv_trt.calibration.quantize.make import Quantized, Request, quantize


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"fastv_trt.calibration.quantize.{_HOME[name]}"), name)
    raise AttributeError(f"module 'fastv_trt.calibration.quantize' has no attribute {name!r}")
