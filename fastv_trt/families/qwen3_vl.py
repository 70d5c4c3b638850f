"""Qwen3-VL: interleaved M-RoPE, and DeepStack: features of early tower layers enter after the first decoder layers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastv_trt.families import frames, packed, qwen
from fastv_trt.families.base import Arrays, Clip, Family, Grid, Input, Media, Settings, Video


def settings(config: Any, preprocessing: Any) -> dict[str, Any]:
    return {
        **qwen.settings(config, preprocessing),
        "table": int(config.vision_config.num_position_embeddings**0.5),
        "start": preprocessing.token("vision_start_token", "<|vision_start|>"),
        "end": preprocessing.token("vision_end_token", "<|vision_end|>"),
    }


def inputs(config: Any) -> tuple[Input, ...]:
    each = int(config.vision_config.spatial_merge_size) ** 2
    taps = (Input("table_index", ("M", each, 4), "int64"), Input("table_weights", ("M", each, 4)))
    return (*qwen.inputs(config), *taps)


def features(model: Any, patches: Any, places: Any, segments: Any, table_index: Any, table_weights: Any) -> Any:
    import torch

    from fastv_trt.families import towers

    visual = model.model.visual
    embedded = visual.pos_embed(table_index.flatten(0, 1)) * table_weights.flatten(0, 1)[..., None]
    hidden = qwen.embed(visual, patches) + embedded.sum(1)
    rotary = visual.rotary_pos_emb(hidden, places.flatten(0, 1))
    mask = towers.same(segments, patches.shape[1], hidden.dtype)
    early = []
    for index, layer in enumerate(visual.blocks):
        hidden = qwen.block(layer, hidden, mask, rotary)
        if index in visual.deepstack_visual_indexes:
            early.append(visual.deepstack_merger_list[visual.deepstack_visual_indexes.index(index)](hidden))
    return visual.merger(hidden), torch.stack(early)


def arrays(settings: Settings, patches: NDArray[Any], grid: Grid) -> dict[str, Any]:
    index, weights = packed.interpolation(grid[1], grid[2], settings["table"], settings["merge"])
    found = qwen.arrays(settings, patches, grid)
    return {
        **found,
        "table_index": np.tile(index, (grid[0], 1, 1)),
        "table_weights": np.tile(weights, (grid[0], 1, 1)),
    }


def per_clip(settings: Settings, clip: Clip) -> Arrays:
    """A clip whose pixels are limited over all its frames."""
    height, width = clip.frames[0].shape[:2]
    limits, count = settings["clip"]["size"], len(clip.frames)
    factor = settings["patch"] * settings["merge"]
    if min(height, width) < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    least, most = limits["shortest_edge"] / count, limits["longest_edge"] / count
    return qwen.patched(settings, clip, frames.smart_size(height, width, factor, least, most))


def clip(settings: Settings, outputs: Arrays) -> Media:
    times, rows, columns = (int(size) for size in outputs["video_grid_thw"][0])
    _, high, wide = qwen.in_tokens(settings, (1, rows, columns))
    run = settings["start"] + settings["video"] * (high * wide) + settings["end"]
    text = "".join(f"<{second:.1f} seconds>{run}" for second in outputs["seconds"])
    media = arrays(settings, outputs["pixel_values_videos"], (times, rows, columns))
    return Media(text, (high * wide,) * times, media, ((1, high, wide),) * times)


FAMILY = Family(
    name="qwen3_vl",
    architectures=("Qwen3VLForConditionalGeneration",),
    special="interleaved M-RoPE; DeepStack, on both sides of the cut where K is below its depth; a run per frame",
    vision_weights=qwen.WEIGHTS,
    settings=settings,
    inputs=inputs,
    features=features,
    image=qwen.image_of(arrays),
    video=Video(per_clip, clip, multiple=2),
    positions="mrope",
    deepstack=lambda config: len(config.vision_config.deepstack_visual_indexes),
)
