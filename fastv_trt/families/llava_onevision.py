"""LLaVA-OneVision: tiles as in LLaVA-NeXT, large grids made smaller; several pictures one tile each; clips pooled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastv_trt.families import anyres, frames, llava
from fastv_trt.families.base import Arrays, Family, Input, Media, Numbers, Settings, Video


def settings(config: Any, preprocessing: Any) -> dict[str, Any]:
    found = anyres.settings(config, llava.tokens_per_picture(config))
    most = int(str(config.vision_aspect_ratio).removeprefix("anyres_max_"))
    return {
        **found,
        "most": most,
        "clip": frames.settings(preprocessing, found["tile"]),
        "axes": {"I": anyres.most_tiles(found["choices"], found["tile"])},
    }


def inputs(config: Any) -> tuple[Input, ...]:
    taps = (Input("feature_index", ("M", 4), "int64"), Input("feature_weights", ("M", 4)))
    return (*llava.inputs(config), *taps)


def features(model: Any, pixel_values: Any, feature_index: Any, feature_weights: Any) -> Any:
    from fastv_trt.families import towers

    tiles = towers.projected(model, pixel_values).flatten(0, 1)
    newline = model.model.image_newline
    taps = [towers.rows_or(newline, tiles, feature_index[:, i]) * feature_weights[:, i, None] for i in range(4)]
    return (taps[0] + taps[1]) + (taps[2] + taps[3])


def _media(token: str, sizes: tuple[int, ...], pixels: Any, index: Any, weights: Any, side: int) -> Media:
    numbers = Numbers(index, len(pixels) * side * side)
    return Media(
        token * len(index), sizes, {"pixel_values": pixels, "feature_index": numbers, "feature_weights": weights}
    )


def _plain(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Rows as they are: the first of four taps has all the weight."""
    return np.repeat(rows[..., None], 4, axis=-1), np.broadcast_to(np.eye(1, 4, dtype=np.float32), (*rows.shape, 4))


def image(settings: Settings, outputs: Arrays) -> Media:
    tile, side, pixels = settings["tile"], settings["side"], outputs["pixel_values"][0]
    index, weights = _plain(np.arange(side * side))
    newline, whole = _plain(np.array([anyres.NEWLINE]))
    if len(pixels) == 1:  # one of several pictures
        lines, shares = newline, whole
    else:
        height, width = (int(size) for size in outputs["image_sizes"][0])
        best = anyres.best_resolution(height, width, settings["choices"])
        grid = anyres.unpad(anyres.grid_index((best[0] // tile, best[1] // tile), side), height, width)
        size = anyres.shrink(grid.shape[0], grid.shape[1], side, settings["most"])
        cells, weighed = _plain(grid) if size == grid.shape else anyres.resized(grid, *size)
        lines, shares = anyres.with_ends(cells, newline), anyres.with_ends(weighed, whole)
    index, weights = np.concatenate((index, lines)), np.concatenate((weights, shares))
    return _media(settings["image"], (len(index),), pixels, index, weights, side)


def clip(settings: Settings, outputs: Arrays) -> Media:
    side, pixels = settings["side"], outputs["pixel_values_videos"][0]
    half = math.ceil(side / 2)
    cells, weights = anyres.resized(np.arange(side * side).reshape(side, side), half, half)
    each = half * half
    index = (np.arange(len(pixels))[:, None, None] * side * side + cells.reshape(1, each, 4)).reshape(-1, 4)
    last = _plain(np.array([anyres.NEWLINE]))
    index = np.concatenate((index, last[0]))
    weights = np.concatenate((np.tile(weights.reshape(each, 4), (len(pixels), 1)), last[1]))
    sizes = (*(each,) * (len(pixels) - 1), each + 1)  # the newline at the end counts with the last frame
    return _media(settings["video"], sizes, pixels, index, weights, side)


FAMILY = Family(
    name="llava_onevision",
    architectures=("LlavaOnevisionForConditionalGeneration",),
    special="any resolution with large grids resized; several pictures take one tile each; clips pooled 2 x 2",
    vision_weights=("model.vision_tower.", "vision_tower."),
    settings=settings,
    inputs=inputs,
    features=features,
    image=image,
    video=Video(frames.tiles, clip, frames=32),
    towers=("clip_vision_model", "siglip_vision_model"),
    together=True,
)
