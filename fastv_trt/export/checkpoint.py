"""A `save_pretrained` folder: what it must hold, and loading it without a second copy of the weights."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel
from transformers.utils import logging as transformers_logging

from fastv_trt.errors import InputError, UnsupportedModelError
from fastv_trt.export import weights
from fastv_trt.export.decoder import check as check_decoder
from fastv_trt.export.folder import checkpoint_folder, refuse_without_processor
from fastv_trt.export.recast import recast, refuse_infinite
from fastv_trt.families import (
    Family,
    family_of,
    qwen_vl_model,  # noqa: F401  (makes its classes known to transformers)
)

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Checkpoint:
    """A folder that was looked at: everything that can be known before a weight is read."""

    folder: Path
    family: Family
    config: Any
    weights: weights.Weights


def read_config(path: str | os.PathLike[str]) -> Any:
    """The config of a checkpoint folder.

    Raises:
        InputError: no folder, no config.json, or not a transformers config.
        UnsupportedModelError: a LoRA adapter.
    """
    folder = checkpoint_folder(path)
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"expected a config.json that transformers knows in {folder}, found: {reason}") from error


def inspect_checkpoint(path: str | os.PathLike[str], k: int, allow_pickle: bool = False) -> Checkpoint:
    """Everything that can be refused before a weight is read.

    Args:
        path: the folder.
        k: the layer to cut at.
        allow_pickle: accept `.bin` weights.

    Raises:
        InputError: the folder is incomplete, K is out of range, or vision weights are missing.
        UnsupportedModelError: the family, the decoder or the weights are not of a kind that exports correctly.
    """
    folder, config = Path(path), read_config(path)
    family = family_of(config)
    _refuse_quantized(folder, config)
    check_decoder(config.get_text_config())
    layers = int(config.get_text_config().num_hidden_layers)
    if not 0 <= k < layers:
        raise InputError(f"expected K in 0..{layers - 1} for a decoder of {layers} layers, found {k}")
    found = weights.find(folder, allow_pickle)
    if not any(name.startswith(family.vision_weights) for name in found.dtypes):
        raise InputError(
            f"expected vision weights ({family.vision_weights[0]}*) in {folder}, found none; "
            "this is only the language model"
        )
    if family.preprocessing is None:
        refuse_without_processor(folder)
    return Checkpoint(folder, family, config, found)


def _refuse_quantized(folder: Path, config: Any) -> None:
    found = getattr(config, "quantization_config", None) or getattr(
        config.get_text_config(), "quantization_config", None
    )
    if found is None:
        return
    method = found.get("quant_method") if isinstance(found, dict) else getattr(found, "quant_method", None)
    raise UnsupportedModelError(
        f"expected weights in fp32, fp16 or bf16 in {folder}, found a quantization_config ({method}): "
        "its weights are packed for that method's own kernels; export the checkpoint that it was quantized from"
    )


def load(
    checkpoint: Checkpoint, dtype: torch.dtype, scratch: Path, attention: str = "sdpa"
) -> tuple[PreTrainedModel, tuple[str, ...]]:
    """Load a checkpoint for inference. Its weights stay on the disk, mapped, and are read as they are used.

    Args:
        checkpoint: what `inspect_checkpoint` returned.
        dtype: of the parameters.
        scratch: an empty folder that outlives the model; weights of another dtype are cast into it.
        attention: name of the attention implementation.

    Returns:
        The model, and what its user should know of it.

    Raises:
        InputError: weights that the model needs are missing from the checkpoint, do not fit its config, or are
            beyond the range of `dtype`.
        FastVError: no room for the cast weights.
    """
    folder, pickled = checkpoint.folder, checkpoint.weights.pickled
    transformers_logging.disable_progress_bar()  # a step of export has its own
    other = any(DTYPES.get(stored) != dtype for stored in checkpoint.weights.stored)
    in_memory = other and _keeps_fp32(checkpoint.config, dtype)
    if other and not in_memory:
        recast(checkpoint.weights, dtype, folder, scratch)
        folder, pickled = scratch, False
    try:
        loaded: Any = AutoModelForImageTextToText.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=attention,
            local_files_only=True,
            use_safetensors=not pickled,
            weights_only=True,
            output_loading_info=True,
        )
    except (RuntimeError, ValueError) as error:  # a weight whose shape is not what config.json says
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"expected weights that fit config.json in {checkpoint.folder}, found: {reason}") from error
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:
        raise InputError(
            f"expected weights for every parameter in {checkpoint.folder}, found {len(missing)} missing: {missing[0]}"
        )
    if in_memory:
        for name, parameter in model.named_parameters():
            refuse_infinite(name, parameter)
    # Buffers of positions and RoPE, which some checkpoints carry, are made anew and not missed.
    unused = sorted(name for name in report["unexpected_keys"] if not name.endswith(("inv_freq", "position_ids")))
    said = (
        (f"weights of the checkpoint that this model does not use: {len(unused)}, such as {unused[0]}",)
        if unused
        else ()
    )
    return model.eval().requires_grad_(False), said


def _keeps_fp32(config: Any, dtype: torch.dtype) -> bool:
    """Whether the model keeps parts in fp32 although `dtype` is asked for.

    Their weights must not be rounded on the way, so transformers casts such a model, in memory.
    """
    with torch.device("meta"):
        model: Any = AutoModelForImageTextToText.from_config(config)
    return bool(model._get_dtype_plan(dtype))


def notes(checkpoint: Checkpoint, dtype: str) -> tuple[str, ...]:
    """What was done to the weights, in words."""
    said = []
    if checkpoint.weights.pickled:
        said.append("weights were read from pickles (.bin), tensors only")
    stored = checkpoint.weights.stored
    if set(stored) - {dtype}:
        said.append(f"weights are stored as {' and '.join(stored)} and were cast to {dtype}")
    return tuple(said)
