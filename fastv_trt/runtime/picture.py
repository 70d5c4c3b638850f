"""A picture of what lived on: the image as the model saw it, pruned patches dimmed, and the scores."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastv_trt.errors import InputError, UnavailableError
from fastv_trt.runtime.chain import Prefill, Request

DIM = 0.15  # how much of a pruned patch still shows


def draw_kept(request: Request, prefill: Prefill, path: str | os.PathLike[str], title: str | None = None) -> None:
    """Draw every image of a request as one row: as seen, what was kept, and the scores if there are any.

    Args:
        request: its `pixel_values` [I,3,H,W] are what is drawn, since resizing and cropping moved the patches.
        prefill: of that request.
        path: of the PNG (or another format of matplotlib) to write.
        title: above the picture.

    Raises:
        InputError: the request has no images, or a file format is unknown.
        UnavailableError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise UnavailableError(
            "expected matplotlib to draw a picture, found none; install fastv-trt with the plot extra"
        ) from error
    matplotlib.use("agg")
    from matplotlib import pyplot

    pixels = request.vision_inputs.get("pixel_values")
    if pixels is None or pixels.ndim != 4:
        raise InputError("expected a request with pixel_values [I,3,H,W] to draw, found none")
    if len(pixels) != len(request.image_sizes):
        raise InputError(
            f"expected one tile per picture to draw, found {len(pixels)} for {len(request.image_sizes)} pictures; "
            "this model's tokens are not one grid of patches"
        )
    kept = np.isin(prefill.image_positions, prefill.keep_indices)
    columns = 2 if prefill.scores is None else 3
    size = (3.2 * columns, 3.4 * len(pixels) + 0.3)
    figure, axes = pyplot.subplots(len(pixels), columns, figsize=size, squeeze=False, layout="constrained")
    start = 0
    for row, (picture, tokens) in enumerate(zip(pixels, request.image_sizes, strict=True)):
        part = slice(start, start + tokens)
        start += tokens
        shown = _displayable(picture)
        grid = grid_of(tokens, shown.shape[0], shown.shape[1])
        share = f"{int(kept[part].sum())} of {tokens} tokens kept"
        panels: list[tuple[str, Any, dict[str, Any]]] = [
            ("as the model sees it", shown, {}),
            (share, dimmed(shown, kept[part].reshape(grid)), {}),
        ]
        if prefill.scores is not None:
            panels.append(("score of each token", _heat(prefill.scores[part].reshape(grid)), {"cmap": "magma"}))
        for column, (name, content, style) in enumerate(panels):
            axes[row, column].imshow(content, interpolation="nearest", **style)
            axes[row, column].set_title(name, fontsize=9)
            axes[row, column].axis("off")
    if title:
        figure.suptitle(title, fontsize=10)
    try:
        figure.savefig(Path(path), dpi=110)
    except (OSError, ValueError) as error:
        raise InputError(f"expected a picture file that can be written at {path}, found: {error}") from error
    finally:
        pyplot.close(figure)


def grid_of(tokens: int, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of the patch grid: the factors of `tokens` whose shape is nearest to the picture's."""
    pairs = [(rows, tokens // rows) for rows in range(1, tokens + 1) if tokens % rows == 0]
    return min(pairs, key=lambda pair: abs(math.log((pair[0] * width) / (pair[1] * height))))


def dimmed(picture: NDArray[np.float32], kept: NDArray[np.bool_]) -> NDArray[np.float32]:
    """`picture` [H,W,3] with the patches that are not `kept` [rows, columns] faded towards white."""
    rows = np.arange(picture.shape[0]) * kept.shape[0] // picture.shape[0]
    columns = np.arange(picture.shape[1]) * kept.shape[1] // picture.shape[1]
    weight = np.where(kept[rows][:, columns], 1.0, DIM)[..., None]
    return (picture * weight + (1.0 - weight)).astype(np.float32)


def _displayable(picture: NDArray[Any]) -> NDArray[np.float32]:
    """Normalised channels [3,H,W] to [H,W,3] in 0..1, each picture stretched to its own range."""
    values = np.moveaxis(picture.astype(np.float32), 0, -1)
    low, high = float(values.min()), float(values.max())
    return (values - low) / max(high - low, 1e-6)


def _heat(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scores on a logarithmic scale: attention spans orders of magnitude."""
    return np.log10(np.maximum(scores, max(float(scores.max()), 1e-9) * 1e-4)).astype(np.float32)
