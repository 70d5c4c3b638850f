"""LLaVA-1.5 and its like: a CLIP or SigLIP tower, a projector, one run of image tokens per image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fastv_trt.errors import UnsupportedModelError
from fastv_trt.export.families.base import Family
from fastv_trt.export.graphs import Argument, Traceable, tensor_record

TOWERS = ("clip_vision_model", "siglip_vision_model")


class Vision(nn.Module):
    """pixel_values [I,3,H,W] -> image_features [M,d], the images' tokens one after the other.

    The model's own `get_image_features` splits its result into a list, which fixes the number of images; so
    its steps stand here: chosen layers of the tower, class token dropped if asked, projector.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.tower, self.projector = model.model.vision_tower, model.model.multi_modal_projector
        layers = model.config.vision_feature_layer
        self.layers = [layers] if isinstance(layers, int) else list(layers)
        self.drop_class_token = model.config.vision_feature_select_strategy == "default"

    def forward(self, pixel_values: Tensor) -> Tensor:
        states = self.tower(pixel_values, output_hidden_states=True, return_dict=True).hidden_states
        chosen = [states[layer][:, 1:] if self.drop_class_token else states[layer] for layer in self.layers]
        features: Tensor = self.projector(torch.cat(chosen, dim=-1))
        return features.flatten(0, 1)


def vision(model: PreTrainedModel) -> Traceable:
    config: Any = model.config
    tower = config.vision_config
    if tower.model_type not in TOWERS:
        raise UnsupportedModelError(f"expected a vision tower of type {', '.join(TOWERS)}, found {tower.model_type!r}")
    axes: tuple[int | str, ...] = ("I", int(tower.num_channels), int(tower.image_size), int(tower.image_size))
    dtype = model.dtype
    pixels = torch.zeros((2, *(int(a) for a in axes[1:])), dtype=dtype)
    size = int(config.text_config.hidden_size)
    return Traceable(
        Vision(model),
        (Argument("pixel_values", pixels, axes),),
        (tensor_record("image_features", dtype, ("M", size)),),
    )


FAMILY = Family(
    name="llava",
    architectures=("LlavaForConditionalGeneration",),
    image_tokens=lambda config: (int(config.image_token_id),),
    vision=vision,
    vision_weights=("model.vision_tower.", "vision_tower."),
)
