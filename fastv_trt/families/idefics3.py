"""Idefics3 and SmolVLM: a run of tokens for each tile, named by row and column, then one for the whole picture."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastv_trt.errors import InputError
from fastv_trt.families.base import Arrays, Family, Input, Media, Settings


def settings(config: Any, preprocessing: Any) -> dict[str, Any]:
    vision, pictures = config.vision_config, preprocessing.image_processor
    side, tile = int(vision.image_size // vision.patch_size), int(pictures.max_image_size["longest_edge"])
    if tile != vision.image_size:
        raise InputError(f"expected tiles of the tower's {vision.image_size} pixels, found max_image_size {tile}")
    most = -(-int(pictures.size["longest_edge"]) // tile)
    return {
        "tokens": int(side**2 / config.scale_factor**2),
        "fake": preprocessing.token("fake_image_token", "<fake_token_around_image>"),
        "whole": preprocessing.token("global_image_token", "<global-img>"),
        "options": {"return_row_col_info": True},
        "axes": {"I": most * most + 1},
    }


def inputs(config: Any) -> tuple[Input, ...]:
    side = int(config.vision_config.image_size)
    return (Input("pixel_values", ("I", int(config.vision_config.num_channels), side, side)),)


def places(side: int) -> NDArray[np.int64]:
    """Which position embedding each patch of a whole tile takes, [side * side].

    The model finds it by its place in the tile as a fraction, in float32, so here are the same steps: a fraction that
    falls on a boundary may land on either side of it.
    """
    boundaries = np.arange(1 / side, 1.0, 1 / side).astype(np.float32)
    fractions = np.arange(side, dtype=np.float32) * (np.float32(1.0) / np.float32(side))
    bucket = np.searchsorted(boundaries, np.minimum(fractions, np.float32(1.0 - 1e-6)), side="right")
    grid: NDArray[np.int64] = (bucket[:, None] * side + bucket[None, :]).astype(np.int64)
    return grid.reshape(-1)


def features(model: Any, pixel_values: Any) -> Any:
    import torch

    inner, tower = model.model, model.model.vision_model
    embeddings = tower.embeddings
    chosen = torch.tensor(places(embeddings.num_patches_per_side).tolist())
    patches = embeddings.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
    states = tower.encoder(inputs_embeds=patches + embeddings.position_embedding(chosen)).last_hidden_state
    return inner.connector(tower.post_layernorm(states)).flatten(0, 1)


def image(settings: Settings, outputs: Arrays) -> Media:
    rows, columns = (int(np.ravel(outputs[name])[0]) for name in ("rows", "cols"))
    run, fake = settings["image"] * settings["tokens"], settings["fake"]
    text = ""
    for row in range(rows):
        text += "".join(f"{fake}<row_{row + 1}_col_{column + 1}>{run}" for column in range(columns)) + "\n"
    text += f"{text and chr(10)}{fake}{settings['whole']}{run}{fake}"
    pixels = outputs["pixel_values"][0]
    return Media(text, (settings["tokens"] * len(pixels),), {"pixel_values": pixels})


FAMILY = Family(
    name="idefics3",
    architectures=("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
    special="many runs of tokens per picture: one per tile, then the whole picture",
    vision_weights=("model.vision_model.", "vision_model."),
    settings=settings,
    inputs=inputs,
    features=features,
    image=image,
    towers=("idefics3_vision", "smolvlm_vision"),
)
