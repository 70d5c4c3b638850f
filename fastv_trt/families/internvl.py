"""InternVL 2.5, 3 and 3.5: 448-pixel tiles and a thumbnail, four patches to a token, one run of tokens per picture."""

from __future__ import annotations

from typing import Any

from fastv_trt.families import frames
from fastv_trt.families.base import Arrays, Family, Input, Media, Settings, Video


def _sides(config: Any) -> tuple[int, int]:
    """A tile's side in pixels and in tokens."""
    size, patch = config.vision_config.image_size, config.vision_config.patch_size
    size, patch = (value if isinstance(value, int) else value[0] for value in (size, patch))
    return int(size), int(size // patch * config.downsample_ratio)


def settings(config: Any, preprocessing: Any) -> dict[str, Any]:
    pixels, side = _sides(config)
    pictures = preprocessing.image_processor
    return {
        "tokens": side * side,
        "start": preprocessing.token("start_image_token", "<img>"),
        "end": preprocessing.token("end_image_token", "</img>"),
        "options": {"crop_to_patches": True},  # as transformers' processor does
        "clip": frames.settings(preprocessing, pixels),
        "axes": {"I": int(getattr(pictures, "max_patches", 12)) + 1},  # and the thumbnail
    }


def inputs(config: Any) -> tuple[Input, ...]:
    side = _sides(config)[0]
    return (Input("pixel_values", ("I", int(config.vision_config.num_channels), side, side)),)


def features(model: Any, pixel_values: Any) -> Any:
    config, inner = model.config, model.model
    output = inner.vision_tower(pixel_values=pixel_values, output_hidden_states=True, return_dict=True)
    layer = config.vision_feature_layer
    states = output.last_hidden_state if layer == -1 else output.hidden_states[layer]
    states = states[:, 1:] if config.vision_feature_select_strategy == "default" else states
    side = round(states.shape[1] ** 0.5)
    shuffled = inner.pixel_shuffle(states.unflatten(1, (side, side)), scale_factor=config.downsample_ratio)
    return inner.multi_modal_projector(shuffled.flatten(1, 2)).flatten(0, 1)


def _run(settings: Settings, tiles: int) -> str:
    return f"{settings['start']}{settings['image'] * (settings['tokens'] * tiles)}{settings['end']}"


def image(settings: Settings, outputs: Arrays) -> Media:
    pixels = outputs["pixel_values"]
    return Media(_run(settings, len(pixels)), (settings["tokens"] * len(pixels),), {"pixel_values": pixels})


def frames_as_tiles(settings: Settings, clip: Any) -> Arrays:
    return {"pixel_values": frames.tiles(settings, clip)["pixel_values_videos"][0]}


def clip(settings: Settings, outputs: Arrays) -> Media:
    pixels = outputs["pixel_values"]
    lines = [f"Frame{index + 1}: {_run(settings, 1)}" for index in range(len(pixels))]
    return Media("\n".join(lines), (settings["tokens"],) * len(pixels), {"pixel_values": pixels})


FAMILY = Family(
    name="internvl",
    architectures=("InternVLForConditionalGeneration",),
    special="tiles and a thumbnail between <img> and </img>; a clip is one such run per frame",
    vision_weights=("model.vision_tower.", "vision_tower."),
    settings=settings,
    inputs=inputs,
    features=features,
    image=image,
    video=Video(frames_as_tiles, clip),
    towers=("internvl_vision",),
)
