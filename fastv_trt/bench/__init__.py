"""Measuring a loaded bundle on this machine: latencies by part, memory, and how far they can be trusted."""

from fastv_trt.bench.machine import Noise, machine, watching
from fastv_trt.bench.measure import Point, Prompt, check, image_request, measure
from fastv_trt.bench.report import as_rows, statistics_of

__all__ = [
    "Noise",
    "Point",
    "Prompt",
    "as_rows",
    "check",
    "image_request",
    "machine",
    "measure",
    "statistics_of",
    "watching",
]
