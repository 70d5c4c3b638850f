"""Qwen2-VL: any resolution in one row of patches; positions of three rows."""

from __future__ import annotations

from typing import Any

from fastv_trt.families import qwen
from fastv_trt.families.base import Family, Video


def features(model: Any, patches: Any, places: Any, segments: Any) -> Any:
    from fastv_trt.families import towers

    visual = model.model.visual
    hidden = qwen.embed(visual, patches)
    rotary = visual.rotary_pos_emb(hidden, places.flatten(0, 1))
    mask = towers.same(segments, patches.shape[1], hidden.dtype)
    for layer in visual.blocks:
        hidden = qwen.block(layer, hidden, mask, rotary)
    return visual.merger(hidden)


FAMILY = Family(
    name="qwen2_vl",
    architectures=("Qwen2VLForConditionalGeneration",),
    special="any resolution; M-RoPE: an image token's position is its time, row and column",
    vision_weights=qwen.WEIGHTS,
    settings=qwen.settings,
    inputs=qwen.inputs,
    features=features,
    image=qwen.image_of(qwen.arrays),
    video=Video(qwen.per_frame, qwen.clip_of(qwen.arrays, lambda settings: None), multiple=2),
    positions="mrope",
)
