"""Pixtral: a picture keeps its shape, each row of tokens ends with a break token, the last one with an end token."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastv_trt.errors import UnsupportedModelError
from fastv_trt.families import packed
from fastv_trt.families.base import Arrays, Family, Input, Media, Numbers, Settings


def settings(config: Any, preprocessing: Any) -> dict[str, Any]:
    if getattr(config, "vision_feature_select_strategy", "full") != "full":
        raise UnsupportedModelError(
            f"expected vision_feature_select_strategy 'full' with a Pixtral tower, which has no class token, found "
            f"{config.vision_feature_select_strategy!r}"
        )
    merge, patch = int(getattr(config, "spatial_merge_size", 1)), int(config.vision_config.patch_size)
    return {
        "patch": patch,
        "merge": merge,
        "break": preprocessing.token("image_break_token", "[IMG_BREAK]"),
        "end": preprocessing.token("image_end_token", "[IMG_END]"),
        "options": {"patch_size": patch * merge},
        "axes": {},
    }


def inputs(config: Any) -> tuple[Input, ...]:
    vision, each = config.vision_config, int(getattr(config, "spatial_merge_size", 1)) ** 2
    return (
        Input("patches", ("M", each, int(vision.num_channels * vision.patch_size**2))),
        Input("places", ("M", each, 2), "int64"),
        Input("segments", ("M",), "int64"),
    )


def hidden_states(tower: Any, patches: Any, places: Any, segments: Any) -> tuple[Any, ...]:
    """The tower's states [1,P,D] before its first layer and after each."""
    from torch.nn import functional

    from fastv_trt.families import towers

    embedded = functional.linear(patches.flatten(0, 1), tower.patch_conv.weight.flatten(1))
    states = [tower.ln_pre(embedded[None])]
    rotary = tower.patch_positional_embedding(embedded, places.flatten(0, 1))
    mask = towers.same(segments, patches.shape[1], embedded.dtype)
    for layer in tower.transformer.layers:
        states.append(layer(states[-1], mask, position_embeddings=rotary))
    return tuple(states)


def features(model: Any, patches: Any, places: Any, segments: Any) -> Any:
    from fastv_trt.families import towers

    states = hidden_states(model.model.vision_tower, patches, places, segments)
    return model.model.multi_modal_projector(towers.select(states, model.config.vision_feature_layer, False)[0])


def image(settings: Settings, outputs: Arrays) -> Media:
    height, width = (int(size) for size in outputs["image_sizes"][0])
    patch, merge = settings["patch"], settings["merge"]
    rows, columns = height // patch, width // patch
    pixels = outputs["pixel_values"][0][:, : rows * patch, : columns * patch]
    grid = pixels.reshape(-1, rows, patch, columns, patch).transpose(1, 3, 0, 2, 4).reshape(rows, columns, -1)
    rows, columns = rows // merge, columns // merge
    tokens = rows * columns
    text = (settings["image"] * columns + settings["break"]) * rows
    return Media(
        text.removesuffix(settings["break"]) + settings["end"],
        (tokens,),
        {
            "patches": packed.merged(grid, merge),
            "places": packed.places(1, rows * merge, columns * merge, merge),
            "segments": Numbers(np.zeros(tokens, dtype=np.int64), 1),
        },
    )


FAMILY = Family(
    name="pixtral",
    architectures=("LlavaForConditionalGeneration",),
    special="pictures keep their shape; rows of tokens end with a break token",
    vision_weights=("model.vision_tower.", "vision_tower."),
    settings=settings,
    inputs=inputs,
    features=features,
    image=image,
    towers=("pixtral",),
)
