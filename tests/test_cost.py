"""Formulas against hand-counted figures."""

from __future__ import annotations

from fastv_trt import cost
from fastv_trt.bundle import ModelRecord

LLAVA_7B = ModelRecord(
    family="llava",
    architecture="LlavaForConditionalGeneration",
    layers=32,
    hidden_size=4096,
    heads=32,
    key_value_heads=32,
    head_size=128,
    ffn_size=11008,
    vocab_size=32064,
    max_positions=4096,
    parameters=7_063_427_072,
    decoder="llama",
)


def test_kv_memory_of_llava_7b() -> None:
    """fp16, 612 tokens of which 576 are image tokens, K=2, R=50 %: 306 MiB become 171."""
    full = cost.kv_bytes(LLAVA_7B, "fp16", 2, 612, 612) / 2**20
    pruned = cost.kv_bytes(LLAVA_7B, "fp16", 2, 612, 324) / 2**20
    assert (round(full), round(pruned)) == (306, 171)


def test_a_layer_counts_its_weights_twice_per_token_and_attention_by_the_square() -> None:
    weights = 4 * 4096 * 4096 + 3 * 4096 * 11008
    assert cost.layer_flops(LLAVA_7B, 10) == 2 * 10 * weights + 4 * 100 * 4096


def test_pruning_leaves_layers_before_k_alone() -> None:
    head = 2 * 4096 * 32064
    full, half = cost.layer_flops(LLAVA_7B, 612), cost.layer_flops(LLAVA_7B, 324)
    assert cost.prefill_flops(LLAVA_7B, 2, 612, 324) == 2 * full + 30 * half + head
    assert cost.prefill_flops(LLAVA_7B, 0, 612, 324) == 32 * half + head
