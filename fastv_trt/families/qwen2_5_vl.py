"""Qwen2.5-VL: as Qwen2-VL, but most of the tower's layers see one window each, and times are in seconds."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from fastv_trt.families import packed, qwen
from fastv_trt.families.base import Family, Grid, Input, Numbers, Settings, Video


def settings(config: Any, preprocessing: Any) -> dict[str, Any]:
    vision, found = config.vision_config, qwen.settings(config, preprocessing)
    window = int(vision.window_size) // (found["patch"] * found["merge"])
    return {**found, "window": window, "per_second": float(vision.tokens_per_second)}


def inputs(config: Any) -> tuple[Input, ...]:
    return (*qwen.inputs(config), Input("windows", ("M",), "int64"))


def features(model: Any, patches: Any, places: Any, segments: Any, windows: Any) -> Any:
    from fastv_trt.families import towers

    visual, each = model.model.visual, patches.shape[1]
    hidden = qwen.embed(visual, patches)
    rotary = visual.rotary_pos_emb(hidden, places.flatten(0, 1))
    whole, part = (towers.same(numbers, each, hidden.dtype) for numbers in (segments, windows))
    for index, layer in enumerate(visual.blocks):
        hidden = qwen.block(layer, hidden, whole if index in visual.fullatt_block_indexes else part, rotary)
    return visual.merger(hidden)


def arrays(settings: Settings, patches: NDArray[Any], grid: Grid) -> dict[str, Any]:
    window, count = packed.windows(*qwen.in_tokens(settings, grid), settings["window"])
    return {**qwen.arrays(settings, patches, grid), "windows": Numbers(window, count)}


FAMILY = Family(
    name="qwen2_5_vl",
    architectures=("Qwen2_5_VLForConditionalGeneration",),
    special="M-RoPE with times in seconds; window attention in the tower, as masks",
    vision_weights=qwen.WEIGHTS,
    settings=settings,
    inputs=inputs,
    features=features,
    image=qwen.image_of(arrays),
    video=Video(qwen.per_frame, qwen.clip_of(arrays, lambda settings: settings["per_second"]), multiple=2),
    positions="mrope",
)
