"""The known families, one small file each, and those that other packages register."""

from __future__ import annotations

from functools import cache
from importlib import import_module, metadata
from typing import Any

from fastv_trt.errors import UnsupportedModelError
from fastv_trt.families.base import Clip, Family, Input, Media, Numbers, Video, join, mrope

ENTRY_POINTS = "fastv_trt.families"
"""Entry-point group: each entry is a `Family`."""

BUILT_IN = (
    "llava",
    "llava_next",
    "llava_onevision",
    "video_llava",
    "instructblip",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "internvl",
    "idefics3",
    "pixtral",
    "mistral3",
    "qwen_vl_chat",
)

# Known, and known not to fit: the reason is the answer.
REFUSED = {
    "Gemma3ForConditionalGeneration": "its image tokens attend bidirectionally, which the causal graphs do not",
    "PaliGemmaForConditionalGeneration": "its prompt attends bidirectionally, which the causal graphs do not",
}

__all__ = [
    "REFUSED",
    "Clip",
    "Family",
    "Input",
    "Media",
    "Numbers",
    "Video",
    "by_name",
    "families",
    "family_of",
    "join",
    "mrope",
]


@cache
def families() -> tuple[Family, ...]:
    """All families: the built-in ones, then those of entry points by name.

    Raises:
        UnsupportedModelError: an entry point cannot be loaded, is no family, or takes a name that is in use.
    """
    found = [import_module(f"{__name__}.{name}").FAMILY for name in BUILT_IN]
    for point in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda p: p.name):
        try:
            family = point.load()
        except Exception as error:
            raise UnsupportedModelError(f"expected a family at {point.value}, found: {error}") from error
        if not isinstance(family, Family) or family.name in {other.name for other in found}:
            what = f"the name {family.name!r} again" if isinstance(family, Family) else type(family).__name__
            raise UnsupportedModelError(f"expected a new Family at {point.value}, found {what}; uninstall or rename it")
        found.append(family)
    return tuple(found)


def by_name(name: str) -> Family:
    """The family that a bundle names.

    Raises:
        UnsupportedModelError: none is called that.
    """
    for family in families():
        if family.name == name:
            return family
    known = ", ".join(family.name for family in families())
    raise UnsupportedModelError(
        f"expected a family of {known}, found {name!r}; install the package that it comes from, or upgrade fastv-trt"
    )


def family_of(config: Any) -> Family:
    """The family of a checkpoint's config.

    Raises:
        UnsupportedModelError: unknown, not causal over images, or with another vision tower.
    """
    names = list(getattr(config, "architectures", None) or [])
    tower = str(getattr(getattr(config, "vision_config", None), "model_type", None))
    alike = [family for family in families() if set(names) & set(family.architectures)]
    for family in alike:
        if not family.towers or tower in family.towers:
            return family
    if alike:
        towers = ", ".join(tower for family in alike for tower in family.towers)
        raise UnsupportedModelError(f"expected a vision tower of type {towers} for {names[0]}, found {tower!r}")
    for name in names:
        if name in REFUSED:
            raise UnsupportedModelError(f"expected a model that is causal over images, found {name}: {REFUSED[name]}")
    known = ", ".join(dict.fromkeys(name for family in families() for name in family.architectures))
    raise UnsupportedModelError(
        f"expected a checkpoint of {known}, found {', '.join(names) or 'no architecture'} in its config.json"
    )
