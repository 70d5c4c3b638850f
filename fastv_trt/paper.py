"""Table 1 of the FastV paper (arXiv 2403.06764): its models, and its column "FLOPs (B)"."""

from __future__ import annotations

from dataclasses import dataclass

from fastv_trt.bundle import ModelRecord

TEXT_TOKENS, IMAGE_TOKENS = 36, 576
"""The prompt that reproduces the column for LLaVA-1.5; the paper does not state it."""


@dataclass(frozen=True)
class PaperRow:
    """One row: the model's name, K and R as percent (0, 0 is the baseline), FLOPs in units of 10^9."""

    model: str
    k: int
    ratio: int
    gflops: float


def _llava(layers: int, hidden: int, heads: int, ffn: int, parameters: int) -> ModelRecord:
    return ModelRecord(
        family="llava",
        architecture="LlavaForConditionalGeneration",
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        key_value_heads=heads,
        head_size=hidden // heads,
        ffn_size=ffn,
        vocab_size=32064,
        max_positions=4096,
        parameters=parameters,
        decoder="llama",
    )


MODELS = {
    "llava-1.5-7b": _llava(32, 4096, 32, 11008, 7_063_427_072),
    "llava-1.5-13b": _llava(40, 5120, 40, 13824, 13_351_494_656),
}
_BY_K = {
    "llava-1.5-7b": {0: (99.3, 51.6, 28.8, 18.9), 2: (54.6, 32.8, 19.9), 3: (56.6, 34.8, 22.8), 5: (59.6, 39.7, 27.8)},
    "llava-1.5-13b": {0: (154.6,), 2: (84.6, 50.2, 29.7), 3: (86.4, 52.9, 33.0), 5: (90.1, 58.4, 39.6)},
}
TABLE = tuple(
    PaperRow(model, k, ratio, gflops)
    for model, by_k in _BY_K.items()
    for k, column in by_k.items()
    for ratio, gflops in zip((0, 50, 75, 90) if k == 0 else (50, 75, 90), column, strict=False)
)
"""Qwen-VL-Chat's rows are left out: its baseline of 71.9 needs a prompt of about 447 tokens, which nothing explains."""
