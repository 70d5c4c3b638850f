"""The known families, one small file each."""

from __future__ import annotations

from typing import Any

from fastv_trt.errors import UnsupportedModelError
from fastv_trt.export.families import llava
from fastv_trt.export.families.base import Family

FAMILIES: tuple[Family, ...] = (llava.FAMILY,)

# Known, and known not to fit: the reason is the answer.
REFUSED = {
    "Gemma3ForConditionalGeneration": "its image tokens attend bidirectionally, which the causal graphs do not",
    "PaliGemmaForConditionalGeneration": "its prompt attends bidirectionally, which the causal graphs do not",
}

__all__ = ["FAMILIES", "REFUSED", "Family", "family_of"]


def family_of(config: Any) -> Family:
    """The family of a checkpoint's config.

    Raises:
        UnsupportedModelError: unknown, or not causal over images.
    """
    names = list(getattr(config, "architectures", None) or [])
    for family in FAMILIES:
        if set(names) & set(family.architectures):
            return family
    for name in names:
        if name in REFUSED:
            raise UnsupportedModelError(f"expected a model that is causal over images, found {name}: {REFUSED[name]}")
    known = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise UnsupportedModelError(
        f"expected a checkpoint of {known}, found {', '.join(names) or 'no architecture'} in its config.json"
    )
