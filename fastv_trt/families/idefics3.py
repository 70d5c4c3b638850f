"""Idefics3 and SmolVLM: a run of tokens for each tile, named by row and column, then one for the whole picture."""

from __future__ import annotations

from typing import Any

import numpy as np

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


def prepare(model: Any) -> None:
    """Find out which position embedding each patch of a whole tile takes, from the model itself.

    It goes by the patch's place in the tile as a fraction in float32, which may fall on either side of a boundary.
    """
    import torch

    embeddings, seen = model.model.vision_model.embeddings, []
    handle = embeddings.position_embedding.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    weight, size, side = embeddings.patch_embedding.weight, embeddings.image_size, embeddings.num_patches_per_side
    with torch.no_grad():
        embeddings(weight.new_zeros(1, weight.shape[1], size, size), torch.ones(1, side, side, dtype=torch.bool))
    handle.remove()
    embeddings.register_buffer("whole_tile", seen[0][0], persistent=False)


def features(model: Any, pixel_values: Any) -> Any:
    inner, tower = model.model, model.model.vision_model
    embeddings = tower.embeddings
    patches = embeddings.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
    places = embeddings.position_embedding(embeddings.whole_tile)
    states = tower.encoder(inputs_embeds=patches + places).last_hidden_state
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
    prepare=prepare,
    towers=("idefics3_vision", "smolvlm_vision"),
)
