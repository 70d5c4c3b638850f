"""Video-LLaVA: one tower for pictures and one for the frames of a clip, which keep their class token."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastv_trt.families import frames, llava
from fastv_trt.families.base import Arrays, Family, Input, Media, Numbers, Settings, Video


def settings(config: Any, preprocessing: Any) -> dict[str, Any]:
    side = int(config.vision_config.image_size)
    return {
        "tokens": llava.tokens_per_picture(config),
        "per_frame": (side // int(config.vision_config.patch_size)) ** 2 + 1,
        "options": {"return_legacy_image_output": False},  # which has another name for pixel_values
        "clip": frames.settings(preprocessing, side),
        "axes": {"I": 1, "F": 8},
    }


def inputs(config: Any) -> tuple[Input, ...]:
    (pictures,) = llava.inputs(config)
    return (pictures, Input("pixel_values_videos", ("F", *pictures.axes[1:])), Input("feature_index", ("M",), "int64"))


def features(model: Any, pixel_values: Any, pixel_values_videos: Any, feature_index: Any) -> Any:
    import torch
    from torch.nn import functional

    from fastv_trt.families import towers

    pictures = towers.projected(model, pixel_values, model.model.image_tower).flatten(0, 1)
    clips = towers.projected(model, pixel_values_videos, model.model.video_tower, full=True).flatten(0, 1)
    rows = torch.where(feature_index < 0, pictures.shape[0] - 1 - feature_index, feature_index)
    return functional.embedding(rows, torch.cat((pictures, clips)))


def image(settings: Settings, outputs: Arrays) -> Media:
    pixels, tokens = outputs["pixel_values"], settings["tokens"]
    numbers = Numbers(np.arange(tokens), tokens)
    none = np.zeros((0, *pixels.shape[1:]), dtype=pixels.dtype)
    return Media(
        settings["image"] * tokens,
        (tokens,),
        {"pixel_values": pixels, "pixel_values_videos": none, "feature_index": numbers},
    )


def clip(settings: Settings, outputs: Arrays) -> Media:
    pixels, each = outputs["pixel_values_videos"][0], settings["per_frame"]
    tokens = each * len(pixels)
    numbers = Numbers(-1 - np.arange(tokens), 0, tokens)  # rows of the clips' features: -1, -2, ...
    none = np.zeros((0, *pixels.shape[1:]), dtype=pixels.dtype)
    return Media(
        settings["video"] * tokens,
        (each,) * len(pixels),
        {"pixel_values": none, "pixel_values_videos": pixels, "feature_index": numbers},
    )


FAMILY = Family(
    name="video_llava",
    architectures=("VideoLlavaForConditionalGeneration",),
    special="a tower of its own for clips; 2056 tokens for eight frames",
    vision_weights=("model.image_tower.", "image_tower."),
    settings=settings,
    inputs=inputs,
    features=features,
    image=image,
    video=Video(frames.tiles, clip, frames=8),
    towers=("clip_vision_model",),
)
