"""LLaVA-NeXT (1.6): a picture is cut into tiles by its shape, rows of the whole end with a newline row."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastv_trt.errors import UnsupportedModelError
from fastv_trt.families import anyres, llava
from fastv_trt.families.base import Arrays, Family, Input, Media, Numbers, Settings


def settings(config: Any, preprocessing: Any) -> dict[str, Any]:
    found = anyres.settings(config, llava.tokens_per_picture(config))
    if found["tokens"] != found["side"] ** 2:
        raise UnsupportedModelError(
            "expected vision_feature_select_strategy 'default' with this tower, found "
            f"{config.vision_feature_select_strategy!r}: its class token has no place in a grid of tiles"
        )
    return {**found, "axes": {"I": anyres.most_tiles(found["choices"], found["tile"])}}


def inputs(config: Any) -> tuple[Input, ...]:
    return (*llava.inputs(config), Input("feature_index", ("M",), "int64"))


def features(model: Any, pixel_values: Any, feature_index: Any) -> Any:
    from fastv_trt.families import towers

    tiles = towers.projected(model, pixel_values).flatten(0, 1)
    return towers.rows_or(model.model.image_newline, tiles, feature_index)


def image(settings: Settings, outputs: Arrays) -> Media:
    height, width = (int(size) for size in outputs["image_sizes"][0])
    tile, side = settings["tile"], settings["side"]
    best = anyres.best_resolution(height, width, settings["choices"])
    grid = anyres.unpad(anyres.grid_index((best[0] // tile, best[1] // tile), side), height, width)
    index = np.concatenate((np.arange(side * side), anyres.with_ends(grid, np.array([anyres.NEWLINE]))))
    pixels = outputs["pixel_values"][0]
    return Media(
        settings["image"] * len(index),
        (len(index),),
        {"pixel_values": pixels, "feature_index": Numbers(index, len(pixels) * side * side)},
    )


FAMILY = Family(
    name="llava_next",
    architectures=("LlavaNextForConditionalGeneration",),
    special="any resolution: tiles by the picture's shape, padding cut away, a newline token after each row",
    vision_weights=("model.vision_tower.", "vision_tower."),
    settings=settings,
    inputs=inputs,
    features=features,
    image=image,
    towers=("clip_vision_model", "siglip_vision_model"),
)
