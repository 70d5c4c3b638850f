"""Requests as files: what the graphs are given, for programs in other languages. Safetensors: nothing is executed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fastv_trt.errors import InputError
from fastv_trt.runtime.chain import Request

VISION = "vision."


def write_request(request: Request, path: str | os.PathLike[str]) -> None:
    """Write `input_ids` [N], `image_sizes` [I], and `vision.<name>` for every input of the vision graph.

    `frame_sizes` and `position_ids` [3,N] are there where the request has them. All but the vision inputs are int64.

    Raises:
        InputError: the file cannot be written.
    """
    tensors: dict[str, NDArray[Any]] = {
        "input_ids": np.ascontiguousarray(request.input_ids, np.int64),
        "image_sizes": np.array(request.image_sizes, np.int64),
    }
    if request.frame_sizes:
        tensors["frame_sizes"] = np.array(request.frame_sizes, np.int64)
    if request.position_ids is not None:
        tensors["position_ids"] = np.ascontiguousarray(request.position_ids, np.int64)
    tensors |= {VISION + name: np.ascontiguousarray(value) for name, value in request.vision_inputs.items()}
    try:
        save_file(tensors, Path(path))
    except (OSError, SafetensorError) as error:
        raise InputError(f"expected a file that can be written at {path}, found: {error}") from error


def read_request(path: str | os.PathLike[str]) -> Request:
    """The request in a file that `write_request` made.

    Raises:
        InputError: there is none.
    """
    try:
        tensors = load_file(Path(path))
        sizes, frames = (tuple(int(size) for size in tensors.get(name, ())) for name in ("image_sizes", "frame_sizes"))
        vision = {name.removeprefix(VISION): value for name, value in tensors.items() if name.startswith(VISION)}
        places = tensors.get("position_ids")
        return Request(tensors["input_ids"], vision, sizes, position_ids=places, frame_sizes=frames)
    except (OSError, SafetensorError, KeyError) as error:
        raise InputError(f"expected inputs as run --dump-inputs writes them in {path}, found: {error}") from error
