"""A `save_pretrained` folder: what it must hold, and loading it without a second copy of the weights."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, PreTrainedModel
from transformers.utils import logging as transformers_logging

from fastv_trt.errors import InputError, UnsupportedModelError
from fastv_trt.export.decoder import check as check_decoder
from fastv_trt.export.families import Family, family_of

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


def read_config(path: str | os.PathLike[str]) -> Any:
    """The config of a checkpoint folder.

    Raises:
        InputError: no folder, no config.json, or not a transformers config.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise InputError(f"expected a save_pretrained folder with config.json at {folder}, found none")
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"expected a config.json that transformers knows in {folder}, found: {reason}") from error


def inspect_checkpoint(path: str | os.PathLike[str], k: int) -> tuple[Family, Any]:
    """Everything that can be refused before a weight is read.

    Args:
        path: the folder.
        k: the layer to cut at.

    Raises:
        InputError: the folder is incomplete, K is out of range, or vision weights are missing.
        UnsupportedModelError: the family or the decoder is not one that exports correctly.
    """
    folder, config = Path(path), read_config(path)
    family = family_of(config)
    if getattr(config, "quantization_config", None) is not None:
        raise UnsupportedModelError(
            f"expected unquantized weights in {folder}, found a quantization_config; export the original checkpoint"
        )
    check_decoder(config.get_text_config())
    layers = int(config.get_text_config().num_hidden_layers)
    if not 0 <= k < layers:
        raise InputError(f"expected K in 0..{layers - 1} for a decoder of {layers} layers, found {k}")
    names = weight_names(folder)
    if not any(name.startswith(family.vision_weights) for name in names):
        raise InputError(
            f"expected vision weights ({family.vision_weights[0]}*) in {folder}, found none; "
            "this is only the language model"
        )
    if not any((folder / name).is_file() for name in PROCESSOR_FILES):
        raise InputError(f"expected an image processor ({' or '.join(PROCESSOR_FILES)}) in {folder}, found none")
    return family, config


def weight_names(folder: Path) -> list[str]:
    """Names of the weights in a folder's safetensors files, without reading the weights.

    Raises:
        InputError: no safetensors, or a damaged or missing one.
    """
    index = folder / "model.safetensors.index.json"
    files = sorted(folder.glob("*.safetensors"))
    if index.is_file():
        wanted = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        missing = [name for name in wanted if not (folder / name).is_file()]
        if missing:
            raise InputError(f"expected {len(wanted)} weight files in {folder}, found {missing[0]} missing")
        files = [folder / name for name in wanted]
    if not files:
        other = next((p.name for p in folder.glob("*.bin")), None)
        found = f"only {other}, a pickle; convert it with save_pretrained" if other else "none"
        raise InputError(f"expected weights (*.safetensors) in {folder}, found {found}")
    names: list[str] = []
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                names.extend(opened.keys())
        except (OSError, SafetensorError) as error:
            raise InputError(f"expected a whole safetensors file at {file}, found: {error}") from error
    return names


def load(path: str | os.PathLike[str], dtype: torch.dtype, attention: str = "sdpa") -> PreTrainedModel:
    """Load a checkpoint for inference.

    Raises:
        InputError: weights that the model needs are missing from the checkpoint, or do not fit its config.
    """
    transformers_logging.disable_progress_bar()  # a step of export has its own
    try:
        loaded: Any = AutoModelForImageTextToText.from_pretrained(
            path,
            dtype=dtype,
            attn_implementation=attention,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (RuntimeError, ValueError) as error:  # a weight whose shape is not what config.json says
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"expected weights that fit config.json in {path}, found: {reason}") from error
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:
        raise InputError(f"expected weights for every parameter in {path}, found {len(missing)} missing: {missing[0]}")
    result: PreTrainedModel = model.eval().requires_grad_(False)
    return result


def load_processor(path: str | os.PathLike[str]) -> Any:
    """The checkpoint's processor: tokenizer, image processor and chat template.

    Raises:
        InputError: it cannot be loaded, or lacks an image token.
    """
    try:
        processor: Any = AutoProcessor.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"expected a processor that transformers can load in {path}, found: {reason}") from error
    if getattr(processor, "image_token", None) is None:
        raise InputError(f"expected a processor with an image token in {path}, found {type(processor).__name__}")
    return processor
