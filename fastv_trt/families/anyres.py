"""Any-resolution pictures: tiles of a picture are one grid of features, whose padding is cut away again.

The vision graph knows nothing of it: it computes the features of all tiles, one after the other, and then takes the
rows that an index names. All that depends on the size of a picture is in that index, which is made here.

Source: LLaVA-NeXT, "Improved reasoning, OCR, and world knowledge" (2024); transformers' `pack_image_features`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEWLINE = -1
"""Stands in an index for the row that ends a line."""


def best_resolution(height: int, width: int, choices: Sequence[Sequence[int]]) -> tuple[int, int]:
    """The choice (height, width) that shows most of a picture and, of those, wastes the fewest pixels."""

    def fit(choice: Sequence[int]) -> tuple[int, int]:
        scale = min(choice[1] / width, choice[0] / height)
        shown = min(int(width * scale) * int(height * scale), width * height)
        return shown, -(choice[0] * choice[1] - shown)

    chosen = max(choices, key=fit)
    return int(chosen[0]), int(chosen[1])


def grid_index(tiles: tuple[int, int], side: int) -> NDArray[np.int64]:
    """Where each place of the whole grid stands among the tiles' features, [rows, columns].

    Args:
        tiles: rows and columns of tiles. Tile 0 is the whole picture, smaller; it is not part of the grid.
        side: features along one side of a tile.
    """
    index = np.arange(tiles[0] * tiles[1] * side * side).reshape(*tiles, side, side)
    return index.transpose(0, 2, 1, 3).reshape(tiles[0] * side, tiles[1] * side) + side * side


def unpad(grid: NDArray[np.int64], height: int, width: int) -> NDArray[np.int64]:
    """The part of `grid` that a picture of `height` x `width` pixels covers: padding is on both of two sides."""
    rows, columns = grid.shape
    if width / height > columns / rows:
        padding = (rows - int(round(height * (columns / width), 7))) // 2
        return grid[padding : rows - padding]
    padding = (columns - int(round(width * (rows / height), 7))) // 2
    return grid[:, padding : columns - padding]


def with_ends(grid: NDArray[Any], end: NDArray[Any]) -> NDArray[Any]:
    """Rows of `grid` [rows, columns, ...] one after the other, each followed by `end` [1, ...]."""
    last = np.broadcast_to(end, (grid.shape[0], 1, *grid.shape[2:]))
    return np.concatenate((grid, last), axis=1).reshape(-1, *grid.shape[2:])


def resized(grid: NDArray[np.int64], rows: int, columns: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Bilinear resizing as four rows of features and their weights: both [rows, columns, 4].

    As torch's `interpolate(mode="bilinear", align_corners=False)`.
    """
    (top, bottom, down), (left, right, across) = _taps(grid.shape[0], rows), _taps(grid.shape[1], columns)
    index = np.stack([grid[np.ix_(a, b)] for a in (top, bottom) for b in (left, right)], axis=-1)
    down, across = down[:, None], across[None, :]
    shares = [(1 - down) * (1 - across), (1 - down) * across, down * (1 - across), down * across]
    return index, np.stack(shares, axis=-1).astype(np.float32)


def _taps(size: int, wanted: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Along one side: the places before and after each wanted one, and how far it is from the first to the second."""
    place = np.maximum((np.arange(wanted) + 0.5) * (size / wanted) - 0.5, 0.0)
    first = np.minimum(np.floor(place).astype(np.int64), size - 1)
    return first, np.minimum(first + 1, size - 1), place - first


def most_tiles(choices: Sequence[Sequence[int]], tile: int) -> int:
    """The largest number of tiles of one picture, the small whole one included."""
    return max((h // tile) * (w // tile) for h, w in choices) + 1


def settings(config: Any, tokens: int) -> dict[str, Any]:
    """What the host has to know: side of a tile in pixels and in features, tokens of it, and the resolutions."""
    tile = int(config.vision_config.image_size)
    side = tile // int(config.vision_config.patch_size)
    choices = [[int(h), int(w)] for h, w in config.image_grid_pinpoints]
    return {"tile": tile, "side": side, "tokens": tokens, "choices": choices}


def shrink(rows: int, columns: int, side: int, most: int) -> tuple[int, int]:
    """LLaVA-OneVision: a grid that is larger than `most` tiles is made smaller, with its shape kept."""
    ratio = math.sqrt(rows * columns / (most * side**2))
    return (int(rows // ratio), int(columns // ratio)) if ratio > 1.1 else (rows, columns)
