"""How large a checkpoint's graphs will be, from its config.json alone: the real classes, on torch's meta device."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText

from fastv_trt.bundle import ModelRecord
from fastv_trt.cost import ITEM_BYTES
from fastv_trt.errors import InputError, UnsupportedModelError
from fastv_trt.export.decoder import check as check_decoder
from fastv_trt.families import (
    family_of,
    qwen_vl_model,  # noqa: F401  (makes its classes known to transformers)
)

_WIDTHS = ("embed_dim", "hidden_size", "width")  # what families call it; Qwen2-VL's hidden_size is the decoder's
_DEFAULT_IMAGE_TOKENS = 576  # of a LLaVA-1.5 picture, and of the paper


@dataclass(frozen=True)
class Vision:
    """Sizes of the vision part.

    Attributes:
        width: activations of one patch that live at once in a layer.
        patches: of one picture or tile; None where pictures keep their size.
        merge: patches that make one image token, where pictures keep their size.
    """

    width: int
    patches: int | None
    merge: int

    def patches_at_once(self, images: int, prompt: int) -> int:
        """Patches of a prompt's pictures: of so many pictures or tiles, or of a prompt that is all image."""
        return images * self.patches if self.patches is not None else prompt * self.merge


@dataclass(frozen=True)
class Sizes:
    """A model without its weights.

    Attributes:
        model: what bundle.json would say of it.
        graphs: parameters of each graph that has weights. A tied embedding counts in both graphs that use it.
        vision: sizes of the vision part.
        image_tokens: of one picture, as far as the config says; else the paper's 576.
        refusal: why `export` would refuse it; None if it would not.
    """

    model: ModelRecord
    graphs: dict[str, int]
    vision: Vision
    image_tokens: int
    refusal: str | None

    def graph_bytes(self, dtype: str) -> dict[str, int]:
        """Bytes of each graph's weights."""
        return {name: count * ITEM_BYTES[dtype] for name, count in self.graphs.items()}


def measure(path: str | os.PathLike[str], k: int) -> Sizes:
    """Sizes of the graphs for a cut at layer `k`. Reads a config.json and nothing else.

    Args:
        path: the file, or a folder with it.
        k: the layer to cut at.

    Raises:
        InputError: no config there, not one of a vision-language model, or K is out of range.
    """
    config = _config(Path(path))
    text = config.get_text_config()
    layers = int(text.num_hidden_layers)
    if not 0 <= k < layers:
        raise InputError(f"expected K in 0..{layers - 1} for a decoder of {layers} layers, found {k}")
    model = _on_meta(config, path)
    decoder: Any = model.get_decoder()
    head = model.get_output_embeddings()
    embed = decoder.get_input_embeddings()
    graphs = {
        "prefix": _count(embed) + sum(_count(layer) for layer in decoder.layers[:k]),
        "suffix": sum(_count(layer) for layer in decoder.layers[k:]) + _count(decoder.norm) + _count(head),
    }
    inside = {id(p) for module in (decoder, head) for p in module.parameters()}
    graphs["vision"] = sum(p.numel() for p in model.parameters() if id(p) not in inside)
    record = ModelRecord(
        family=str(config.model_type),
        architecture=type(model).__name__,
        layers=layers,
        hidden_size=int(text.hidden_size),
        heads=int(text.num_attention_heads),
        key_value_heads=int(getattr(text, "num_key_value_heads", None) or text.num_attention_heads),
        head_size=int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads),
        ffn_size=int(text.intermediate_size),
        vocab_size=int(head.weight.shape[0]),
        max_positions=int(text.max_position_embeddings),
        parameters=sum(p.numel() for p in model.parameters()),
        decoder=str(text.model_type),
    )
    return Sizes(record, graphs, _vision(config), _image_tokens(config), _refusal(config))


def _config(path: Path) -> Any:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"expected a config.json at {path}, found none")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        kind = content["model_type"]
        return AutoConfig.for_model(**content) if kind else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"expected a config.json that transformers knows at {file}, found: {reason}") from error


def _on_meta(config: Any, path: str | os.PathLike[str]) -> Any:
    try:
        with torch.device("meta"):
            return AutoModelForImageTextToText.from_config(config)
    except (ValueError, ImportError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"expected the config of a vision-language model at {path}, found: {reason}") from error


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _vision(config: Any) -> Vision:
    tower = getattr(config, "vision_config", None) or SimpleNamespace(model_type="", **config.visual)
    width = int(next(size for name in _WIDTHS if (size := getattr(tower, name, None))))
    ffn = int(getattr(tower, "intermediate_size", None) or width * getattr(tower, "mlp_ratio", 4))
    merge = int(getattr(tower, "spatial_merge_size", None) or getattr(config, "spatial_merge_size", None) or 1) ** 2
    side, patch = _first(getattr(tower, "image_size", None)), _first(getattr(tower, "patch_size", 14))
    keeps_size = merge > 1 or side is None or tower.model_type == "pixtral"
    return Vision(6 * width + 2 * ffn, None if keeps_size or side is None else (side // patch) ** 2, merge)


def _first(size: Any) -> Any:
    return size[0] if isinstance(size, (list, tuple)) else size


def _image_tokens(config: Any) -> int:
    return int(getattr(config, "image_seq_length", None) or _DEFAULT_IMAGE_TOKENS)


def _refusal(config: Any) -> str | None:
    try:
        family_of(config)
        check_decoder(config.get_text_config())
    except UnsupportedModelError as error:
        return str(error)
    return None
