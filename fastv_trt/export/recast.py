"""Casting a checkpoint on disk, a piece at a time.

transformers maps weights that have the wanted dtype already and copies those that it has to cast. So they are
cast into a scratch folder first, and mapped from there: memory holds a piece of the model, never the whole.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fastv_trt.errors import FastVError, InputError
from fastv_trt.export.weights import SAFE, Weights

PIECE_BYTES = 1 << 26  # of the cast weights that are in memory at once, unless one tensor alone is larger


def recast(weights: Weights, dtype: torch.dtype, source: Path, target: Path) -> None:
    """Write a checkpoint again with its floats as `dtype`.

    Args:
        weights: what is in `source`.
        dtype: of every float; other tensors stay as they are.
        source: the checkpoint folder, whose config goes with the weights.
        target: an empty folder on the disk where the bundle will be.

    Raises:
        InputError: a weight is beyond the range of `dtype`.
        FastVError: no room on the disk.
    """
    where: dict[str, str] = {}
    piece: dict[str, torch.Tensor] = {}
    room = 0

    def flush() -> None:
        nonlocal room
        name = f"model-{len(set(where.values())):05}.safetensors"
        try:
            save_file(piece, target / name, {"format": "pt"})
        except (OSError, SafetensorError) as error:
            raise FastVError(f"expected room to cast weights in {target.parent}, found: {error}") from error
        where.update(dict.fromkeys(piece, name))
        piece.clear()
        room = 0

    for name, tensor in _tensors(weights):
        piece[name] = _cast(name, tensor, dtype)
        room += piece[name].nbytes
        if room >= PIECE_BYTES:
            flush()
    if piece:
        flush()
    (target / f"{SAFE}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}), encoding="utf-8")
    for config in ("config.json", "generation_config.json"):
        if (source / config).is_file():
            shutil.copyfile(source / config, target / config)


def _tensors(weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
    for file in weights.files:
        if weights.pickled:
            # Files of before torch 1.6 are no archives and cannot be mapped.
            yield from torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)).items()
            continue
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  (it is no dict)
                yield name, opened.get_tensor(name)


def _cast(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor.clone()
    result = tensor.to(dtype, copy=True)
    refuse_infinite(name, result)
    return result.contiguous()


def refuse_infinite(name: str, weight: torch.Tensor) -> None:
    """Raise InputError if a weight that was cast is not finite."""
    if not torch.isfinite(weight).all():
        raise InputError(
            f"expected weights within the range of {weight.dtype}, found {name} beyond it; export in another dtype"
        )
