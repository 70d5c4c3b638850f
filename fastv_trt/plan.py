"""What a model will need once it is compiled, as formulas: nothing is exported, built or run.

Sizes of weights and caches are exact. Engine overhead and build memory are factors that were measured on smaller
models (docs/engines.md, "Time, memory, size"). Activations are an estimate from the graphs' shapes; no engine was
measured for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastv_trt import cost
from fastv_trt.bundle import ModelRecord
from fastv_trt.gpus import GPUS, GpuSheet
from fastv_trt.limits import BuildLimits
from fastv_trt.pruning import Pruning

RATIOS = (0.0, 0.5, 0.75, 0.9)
PLAN_FACTOR = 1.02
"""Plan bytes per weight byte, beside the kernels: 1.013 to 1.015 measured where weights dominate, rounded up."""
KERNEL_BYTES = 4 << 20
"""Kernels in each plan: those of a model of 2.4 MiB, five plans, made 15.5 MiB."""
BUILD_FACTOR = 4
"""Host memory per weight byte of the largest graph: 3.75 measured (3.2 of all weights), rounded up."""
CONTEXT_BYTES = 512 << 20
"""CUDA context and library: a round figure, not measured here."""
HOST_BYTES = 4 << 30
"""What is left to the host where GPU and host share one memory: a round figure."""


@dataclass(frozen=True)
class Cache:
    """Keys and values of one prompt: image tokens that are kept at R, and bytes before and after pruning."""

    ratio: float
    kept: int
    bytes: int


@dataclass(frozen=True)
class Memory:
    """Bytes on the GPU.

    Attributes:
        plans: weights and kernels.
        row: caches of one row at full capacity.
        rows: rows that the limits allow.
        activations: working memory of all graphs' contexts, an estimate.
    """

    plans: int
    row: int
    rows: int
    activations: int

    @property
    def caches(self) -> int:
        return self.row * self.rows

    @property
    def total(self) -> int:
        return self.plans + self.caches + self.activations + CONTEXT_BYTES


@dataclass(frozen=True)
class Fit:
    """Whether the engines fit a GPU, what is left of its memory, and how many rows would fit."""

    gpu: GpuSheet
    fits: bool
    left: int
    rows: int


def caches(model: ModelRecord, dtype: str, k: int, text_tokens: int, image_tokens: int) -> tuple[Cache, ...]:
    """KV bytes of one prompt at several R: layers before K hold all of it, the others what is kept.

    Args:
        text_tokens: of the prompt.
        image_tokens: of all its pictures.
    """
    total = text_tokens + image_tokens
    found = []
    for ratio in RATIOS:
        kept = Pruning(ratio=ratio).keep_count(image_tokens)
        found.append(Cache(ratio, kept, cost.kv_bytes(model, dtype, k, total, text_tokens + kept)))
    return tuple(found)


def memory(
    model: ModelRecord,
    dtype: str,
    k: int,
    graphs: Mapping[str, int],
    limits: BuildLimits,
    vision_width: int,
    patches: int,
) -> Memory:
    """GPU memory of engines that are built with `limits`.

    Args:
        graphs: bytes of weights of each graph.
        vision_width: activations of one patch that live at once.
        patches: that the vision graph takes at once.
    """
    ranks = 2 if k else 0
    plans = round(sum(graphs.values()) * PLAN_FACTOR) + KERNEL_BYTES * (len(graphs) + ranks)
    row = cost.kv_bytes(model, dtype, k, limits.capacity, limits.suffix_capacity)
    item = cost.ITEM_BYTES[dtype]
    working = (
        _layer(model, item, limits.max_prompt, limits.capacity)
        + _layer(model, item, limits.kept.max, limits.suffix_capacity)
        + patches * vision_width * item
    )
    if k:  # scores and their softmax in fp32, for the query heads of one key/value head at a time
        working += 2 * 4 * (model.heads // model.key_value_heads) * limits.max_prompt * limits.capacity
    return Memory(plans, row, limits.max_batch, working)


def _layer(model: ModelRecord, item: int, queries: int, slots: int) -> int:
    """Bytes that live at once in a decoder layer's prefill: residual, norm, the wider of attention and MLP, mask."""
    attention = (2 * model.heads + 2 * model.key_value_heads) * model.head_size
    return item * queries * (3 * model.hidden_size + max(attention, 3 * model.ffn_size) + slots)


def build_bytes(graphs: Mapping[str, int]) -> int:
    """Host memory to compile the largest graph; graphs are compiled one after the other."""
    return BUILD_FACTOR * max(graphs.values())


def fits(needed: Memory) -> tuple[Fit, ...]:
    """Every GPU of the table against what is needed, smallest memory first."""
    return tuple(_fit(gpu, needed) for gpu in sorted(GPUS, key=lambda gpu: (gpu.shared, gpu.memory_bytes)))


def _fit(gpu: GpuSheet, needed: Memory) -> Fit:
    usable = gpu.memory_bytes - (HOST_BYTES if gpu.shared else 0)
    rows = max(0, (usable - (needed.total - needed.caches)) // needed.row)
    return Fit(gpu, needed.total <= usable, usable - needed.total, rows)
