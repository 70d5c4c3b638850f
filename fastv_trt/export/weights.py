"""A checkpoint folder's weight files: which ones count, and what their headers say. No weight is read.

Files are looked up in transformers' own order: model.safetensors, its index, then (only if asked) the pickled
pytorch_model.bin and its index.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from fastv_trt.errors import InputError, UnsupportedModelError

SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"
FLOATS = {"F32": "fp32", "F16": "fp16", "BF16": "bf16", "F64": "fp64"}
WHOLE = {"I64", "I32", "BOOL"}  # buffers of positions, which are no weights
_TORCH = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.int64: "I64"}

# What quantizers call the pieces that they put in a weight's place.
_QUANTIZED = re.compile(
    r"\.(qweight|qzeros|g_idx|SCB|absmax|quant_map|weight_packed|weight_scale|weight_scale_inv|input_scale)$"
)
_UNMERGED = re.compile(r"\.(lora_[AB]|lora_embedding_[AB]|base_layer)\b")


@dataclass(frozen=True)
class Weights:
    """Weights of a checkpoint, by the headers of its files.

    Attributes:
        files: what is read, links resolved by whoever opens them.
        dtypes: name of each tensor -> its dtype as safetensors writes it ("F32", "BF16", ...).
        pickled: whether the files are pickles.
    """

    files: tuple[Path, ...]
    dtypes: dict[str, str]
    pickled: bool

    @property
    def stored(self) -> tuple[str, ...]:
        """Float dtypes that occur, as this project names them: fp32, fp16, bf16."""
        return tuple(sorted({FLOATS[dtype] for dtype in self.dtypes.values() if dtype in FLOATS}))


def find(folder: Path, allow_pickle: bool = False) -> Weights:
    """The weights of a checkpoint folder.

    Args:
        folder: the checkpoint.
        allow_pickle: read `.bin` files if there are no safetensors. Torch then unpickles tensors alone
            (`weights_only=True`) and refuses anything else.

    Raises:
        InputError: none there, a shard is missing, a file is damaged, or only pickles and they were not asked for.
        UnsupportedModelError: quantized weights, or LoRA weights that were not merged.
    """
    files, pickled = _files(folder, allow_pickle)
    dtypes: dict[str, str] = {}
    for file in files:
        dtypes |= _pickle_header(file) if pickled else _header(file)
    _refuse_other_kinds(folder, dtypes)
    return Weights(tuple(files), dtypes, pickled)


def _files(folder: Path, allow_pickle: bool) -> tuple[list[Path], bool]:
    """The files that hold the weights, and whether they are pickles."""
    for name, pickled in ((SAFE, False), (PICKLED, True)):
        index = folder / f"{name}.index.json"
        single = folder / name
        if not _entry(single) and not _entry(index):
            continue
        if pickled and not allow_pickle:
            found = (single if _entry(single) else index).name
            raise InputError(
                f"expected weights as *.safetensors in {folder}, found only {found}, a pickle, which may run code when "
                "it is read; convert it with save_pretrained, or give --allow-pickle to let torch unpickle tensors and "
                "nothing else"
            )
        files = [single] if _entry(single) else _shards(index)
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            how = "a link to nothing: the download is incomplete" if _entry(folder / missing[0]) else "missing"
            raise InputError(f"expected {len(files)} weight files in {folder}, found {missing[0]} {how}")
        return files, pickled
    raise InputError(f"expected weights (*.safetensors) in {folder}, found {_instead(folder)}")


def _entry(path: Path) -> bool:
    """Whether the folder has such a name, be it a link to nothing."""
    return path.is_file() or path.is_symlink()


def _shards(index: Path) -> list[Path]:
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        if not names or any(Path(name).name != name for name in names):
            raise ValueError("it names no file of this folder")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"expected an index with a weight_map at {index}, found: {error!r}") from error
    return [index.parent / name for name in sorted(set(names))]


def _instead(folder: Path) -> str:
    """What a folder without transformers' weight files has in their place."""
    names = sorted(path.name for path in folder.iterdir())
    safe = [name for name in names if name.endswith(".safetensors")]
    if safe:
        return f"only {safe[0]}; transformers reads {SAFE} or {SAFE}.index.json, so this is another layout or a variant"
    for ending, what in ((".gguf", "a llama.cpp file"), (".pth", "original weights"), (".h5", "TensorFlow weights")):
        other = next((name for name in names if name.endswith(ending)), None)
        if other:
            return f"only {other}, {what}; export the transformers checkpoint"
    return "none; is the download complete?"


def _header(file: Path) -> dict[str, str]:
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: str(opened.get_slice(name).get_dtype()) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(f"expected a whole safetensors file at {file}, found: {error}") from error


def _pickle_header(file: Path) -> dict[str, str]:
    try:
        state = torch.load(file, map_location="meta", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"expected a file of tensors and nothing else at {file}, found: {reason}") from error
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise InputError(f"expected one tensor per name in {file}, found something else; save it with save_pretrained")
    return {str(name): _TORCH.get(value.dtype, str(value.dtype)) for name, value in state.items()}


def _refuse_other_kinds(folder: Path, dtypes: dict[str, str]) -> None:
    unmerged = _first(name for name in dtypes if _UNMERGED.search(name))
    if unmerged:
        raise UnsupportedModelError(
            f"expected merged weights in {folder}, found the LoRA weight {unmerged}; "
            "call merge_and_unload() and save_pretrained() on the PEFT model, and export that"
        )
    quantized = _first(
        name for name, dtype in dtypes.items() if _QUANTIZED.search(name) or dtype not in FLOATS.keys() | WHOLE
    )
    if quantized:
        raise UnsupportedModelError(
            f"expected weights in fp32, fp16 or bf16 in {folder}, found {quantized} ({dtypes[quantized]}), a quantized "
            "one; export the checkpoint that it was quantized from"
        )


def _first(names: Iterable[str]) -> str | None:
    return next(iter(names), None)
