"""What a family of vision-language models has to say about itself. Everything else is shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from fastv_trt.export.graphs import Traceable


@dataclass(frozen=True)
class Family:
    """One family of models.

    Attributes:
        name: short name, written into the bundle.
        architectures: class names as they stand in config.json.
        image_tokens: config -> the token ids that stand for an image token.
        vision: model -> the vision graph, from the image processor's outputs to image_features [M, d].
        vision_weights: prefixes, one of which a weight of the vision part must start with.
    """

    name: str
    architectures: tuple[str, ...]
    image_tokens: Callable[[Any], tuple[int, ...]]
    vision: Callable[[PreTrainedModel], Traceable]
    vision_weights: tuple[str, ...]
