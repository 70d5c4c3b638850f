"""LLaVA-1.5 and its like: a CLIP or SigLIP tower, a projector, one run of image tokens per image."""

from __future__ import annotations

from typing import Any

from fastv_trt.families.base import Arrays, Family, Input, Media, Settings


def tokens_per_picture(config: Any) -> int:
    """Image tokens that one picture of the tower's size becomes."""
    vision = config.vision_config
    whole = vision.model_type == "clip_vision_model" and config.vision_feature_select_strategy != "default"
    return int(vision.image_size // vision.patch_size) ** 2 + int(whole)  # CLIP's class token, if it is not dropped


def settings(config: Any, preprocessing: Any) -> dict[str, Any]:
    return {"tokens": tokens_per_picture(config), "axes": {"I": 1}}


def inputs(config: Any) -> tuple[Input, ...]:
    vision = config.vision_config
    return (Input("pixel_values", ("I", vision.num_channels, vision.image_size, vision.image_size)),)


def features(model: Any, pixel_values: Any) -> Any:
    from fastv_trt.families import towers

    return towers.projected(model, pixel_values).flatten(0, 1)


def image(settings: Settings, outputs: Arrays) -> Media:
    tokens = settings["tokens"]
    return Media(settings["image"] * tokens, (tokens,), {"pixel_values": outputs["pixel_values"]})


FAMILY = Family(
    name="llava",
    architectures=("LlavaForConditionalGeneration",),
    special="one run of tokens per picture, as many for each",
    vision_weights=("model.vision_tower.", "vision_tower."),
    settings=settings,
    inputs=inputs,
    features=features,
    image=image,
    towers=("clip_vision_model", "siglip_vision_model"),
)
