"""A 24-layer model of about half a billion parameters: time, memory and size of a real build, without a GPU."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from fastv_trt.bundle import Bundle
from fastv_trt.engines import build
from fastv_trt.export import export
from fastv_trt.nvidia import Library
from tests.conftest import save_checkpoint

QWEN2_HALF_BILLION = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.02,
}


@pytest.mark.slow
def test_half_a_billion_parameters_build_in_bounded_time_memory_and_size(tmp_path: Path, rtx: Library) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "qwen2", **QWEN2_HALF_BILLION)
    bundle = export(checkpoint, tmp_path / "bundle", k=2, dtype="fp16").bundle
    started = time.perf_counter()
    target = build(bundle)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(f"{seconds:.1f} s, peak {peak / bundle.weight_bytes:.2f} x weights")
    assert seconds < 180  # 22 to 45 s on one core
    assert peak <= 4 * bundle.weight_bytes
    for name in ("prefix", "suffix"):
        plan = target.manifest.engines[name].plan.bytes
        assert plan <= 1.08 * weights(bundle, name), f"{name} stores weights twice"


def weights(bundle: Bundle, graph: str) -> int:
    return sum(file.bytes for file in bundle.manifest.files if file.path.startswith(f"onnx/{graph}.onnx"))
