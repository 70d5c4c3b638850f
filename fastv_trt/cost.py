"""FLOPs, bytes moved and KV memory of a split model, as formulas. Three ways to count FLOPs: docs/performance.md."""

from __future__ import annotations

from dataclasses import dataclass

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
    return 2 * tokens * layer_weights(model) + 4 * tokens * tokens * model.heads * model.head_size


def layer_weights(model: ModelRecord) -> int:
    """Elements of one decoder layer's matrices."""
    query, key = model.heads * model.head_size, model.key_value_heads * model.head_size
    return model.hidden_size * (2 * query + 2 * key) + 3 * model.hidden_size * model.ffn_size


def prefill_flops(model: ModelRecord, k: int, prompt_tokens: int, remaining_tokens: int) -> int:
    """FLOPs of a prefill: K layers over the prompt, L - K over what remains, and one row of lm_head."""
    head = 2 * model.hidden_size * model.vocab_size
    before, after = layer_flops(model, prompt_tokens), layer_flops(model, remaining_tokens)
    return k * before + (model.layers - k) * after + head


def paper_layer_flops(tokens: float, hidden: int, ffn: int) -> float:
    """One decoder layer as the paper counts it: 4nd^2 + 2n^2d + 2ndm. Source: section 4.2.

    A multiply-add counts as 1, and the MLP has two matrices.
    """
    return 4 * tokens * hidden**2 + 2 * tokens**2 * hidden + 2 * tokens * hidden * ffn


def paper_flops(layers: int, hidden: int, ffn: int, k: int, tokens: float, remaining: float) -> float:
    """Average over layers of `paper_layer_flops`: what the column "FLOPs (B)" of the paper's table 1 holds.

    Args:
        tokens: n, of the whole prompt; in the table 36 + 576.
        remaining: n-hat, after pruning; in the table 36 + 576 (1 - R), not rounded.
    """
    before, after = paper_layer_flops(tokens, hidden, ffn), paper_layer_flops(remaining, hidden, ffn)
    return (k * before + (layers - k) * after) / layers


def visual_flops(model: ModelRecord, k: int, image_tokens: int, kept: int) -> int:
    """FLOPs of the image tokens alone, as later papers count them: 4nd^2 + 2n^2d + 3ndm per layer, summed.

    A multiply-add counts as 1, as in the paper, but the gated MLP has its three matrices; text tokens are left out.
    LLaVA-1.5-7B unpruned comes to 3.82 TFLOPs, the figure that PyramidDrop's and SparseVLM's tables start from.
    """

    def layer(tokens: int) -> int:
        return tokens * layer_weights(model) + 2 * tokens**2 * model.heads * model.head_size

    return k * layer(image_tokens) + (model.layers - k) * layer(kept)


@dataclass(frozen=True)
class Work:
    """What a part of the model does in one call.

    Attributes:
        flops: a multiply-add counts as 2.
        bytes: moved between memory and processor: every weight once, keys and values written and read.
    """

    flops: int
    bytes: int

    def seconds(self, flops_per_second: float, bytes_per_second: float) -> float:
        """A roofline: the slower of computing and moving, each at its peak. No real run is faster."""
        return max(self.flops / flops_per_second, self.bytes / bytes_per_second)


def prefill_work(model: ModelRecord, dtype: str, k: int, tokens: int, remaining: int) -> tuple[Work, Work, Work]:
    """Layers before K, layers from K on, and lm_head over one row, of a prefill of one request.

    Activations are not counted as moved: fused kernels keep most of them on the chip.
    """

    def layers(count: int, length: int) -> Work:
        cache = 2 * model.key_value_heads * model.head_size * ITEM_BYTES[dtype] * length
        return Work(count * layer_flops(model, length), count * (layer_weights(model) * ITEM_BYTES[dtype] + 2 * cache))

    return layers(k, tokens), layers(model.layers - k, remaining), _head(model, dtype, 1)


def decode_work(model: ModelRecord, dtype: str, k: int, prefix: int, suffix: int, batch: int = 1) -> tuple[Work, Work]:
    """All layers, and lm_head, of one decode step of `batch` rows whose caches hold `prefix` and `suffix` entries."""
    seen = k * prefix + (model.layers - k) * suffix
    weights = model.layers * layer_weights(model)
    flops = 2 * batch * weights + 4 * batch * seen * model.heads * model.head_size
    return Work(flops, weights * ITEM_BYTES[dtype] + batch * kv_bytes(model, dtype, k, prefix, suffix)), _head(
        model, dtype, batch
    )


def _head(model: ModelRecord, dtype: str, rows: int) -> Work:
    size = model.hidden_size * model.vocab_size
    return Work(2 * rows * size, size * ITEM_BYTES[dtype])
