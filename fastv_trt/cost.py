"""FLOPs, bytes and KV memory of a split model, as formulas."""

from __future__ import annotations

from fastv_trt.bundle import ModelRecord

ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


def kv_bytes(model: ModelRecord, dtype: str, k: int, prefix_tokens: int, suffix_tokens: int) -> int:
    """Bytes of keys and values: `prefix_tokens` entries in layers before K, `suffix_tokens` from K on.

    Source: FastV prunes once, so layers before K hold every token and the others only the kept ones.
    """
    per_layer = 2 * model.key_value_heads * model.head_size * ITEM_BYTES[dtype]
    return per_layer * (k * prefix_tokens + (model.layers - k) * suffix_tokens)


def layer_flops(model: ModelRecord, tokens: int) -> int:
    """FLOPs of one decoder layer over a prompt of `tokens`, with the model's real shapes.

    A multiply-add counts as 2. Query, key, value and output projections with grouped heads, a gated MLP of
    three matrices, and attention scores and sums over the full square, as kernels with an additive mask
    compute them.
    """
    query, key = model.heads * model.head_size, model.key_value_heads * model.head_size
    weights = model.hidden_size * (2 * query + 2 * key) + 3 * model.hidden_size * model.ffn_size
    return 2 * tokens * weights + 4 * tokens * tokens * query


def prefill_flops(model: ModelRecord, k: int, prompt_tokens: int, remaining_tokens: int) -> int:
    """FLOPs of a prefill: K layers over the prompt, L - K over what remains, and one row of lm_head."""
    head = 2 * model.hidden_size * model.vocab_size
    before, after = layer_flops(model, prompt_tokens), layer_flops(model, remaining_tokens)
    return k * before + (model.layers - k) * after + head
