"""Mistral Small 3.1 and later: a Pixtral tower whose patches are merged 2 x 2 before the projector."""

from __future__ import annotations

from typing import Any

from fastv_trt.families import pixtral
from fastv_trt.families.base import Family


def features(model: Any, patches: Any, places: Any, segments: Any) -> Any:
    from fastv_trt.families import towers

    projector = model.model.multi_modal_projector
    states = pixtral.hidden_states(model.model.vision_tower, patches, places, segments)
    chosen = projector.norm(towers.select(states, model.config.vision_feature_layer, False)[0])
    # The merging layer was trained on torch's unfold, which puts channels before places.
    blocks = chosen.unflatten(0, (-1, patches.shape[1])).transpose(1, 2).flatten(1)
    return projector.linear_2(projector.act(projector.linear_1(projector.patch_merger.merging_layer(blocks))))


FAMILY = Family(
    name="mistral3",
    architectures=("Mistral3ForConditionalGeneration",),
    special="as pixtral, patches merged 2 x 2",
    vision_weights=("model.vision_tower.", "vision_tower."),
    settings=pixtral.settings,
    inputs=pixtral.inputs,
    features=features,
    image=pixtral.image,
    towers=("pixtral",),
)
