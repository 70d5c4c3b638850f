"""Bundle -> tokens. Needs neither torch nor the exporter; its core needs no transformers either."""

from __future__ import annotations

from fastv_trt.runtime.chain import Chain, Prefill, Request
from fastv_trt.runtime.generation import Generation, Limits
from fastv_trt.runtime.runtime import Answer, Conversation, Runtime
from fastv_trt.runtime.sampling import Sampling

__all__ = [
    "Answer",
    "Chain",
    "Conversation",
    "Generation",
    "Limits",
    "Prefill",
    "Request",
    "Runtime",
    "Sampling",
]
