"""Towers without a fixed size: the patches of all pictures stand in one row, and see those of their own picture.

Patches that become one token stand together: [M,u,...] for M tokens of u patches each. Which picture, row and column
each belongs to is computed here, so that nothing in the vision graph depends on the size of a picture.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def merged(grid: NDArray[np.generic], merge: int) -> NDArray[np.generic]:
    """[h,w,...] -> [h*w/u,u,...]: blocks of merge x merge, row by row, and in each its places row by row."""
    rows, columns = grid.shape[0] // merge, grid.shape[1] // merge
    blocks = grid.reshape(rows, merge, columns, merge, *grid.shape[2:]).swapaxes(1, 2)
    return blocks.reshape(rows * columns, merge * merge, *grid.shape[2:])


def places(times: int, rows: int, columns: int, merge: int) -> NDArray[np.int64]:
    """Row and column of every patch, [M,u,2]; the same for each time."""
    grid = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1)
    return np.tile(merged(grid, merge), (times, 1, 1)).astype(np.int64)


def windows(times: int, rows: int, columns: int, side: int) -> tuple[NDArray[np.int64], int]:
    """The window of every token of a grid in tokens, [M], and the number of windows; a window is `side` tokens wide.

    Windows start at the first row and column of each time; those at the end are smaller.
    """
    across = -(-columns // side)
    each = across * -(-rows // side)
    window = (np.arange(rows) // side)[:, None] * across + (np.arange(columns) // side)[None, :]
    return (np.arange(times)[:, None] * each + window.reshape(1, -1)).reshape(-1), times * each


def segments(times: int, each: int) -> NDArray[np.int64]:
    """The time that every token belongs to, [M]; `each` tokens to a time."""
    return np.repeat(np.arange(times), each)


def interpolation(rows: int, columns: int, side: int, merge: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Resizing a square table of side x side position embeddings to a picture's grid, bilinear, corners on corners.

    Returns:
        Rows of the table and their weights for every patch, both [M,u,4].
    """

    def taps(size: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        place = np.arange(size, dtype=np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
        first = np.floor(place).astype(np.int64)
        return first, np.minimum(first + 1, side - 1), (place - first).astype(np.float32)

    (top, bottom, down), (left, right, across) = taps(rows), taps(columns)
    index = np.stack([a[:, None] * side + b[None, :] for a in (top, bottom) for b in (left, right)], axis=-1)
    down, across = down[:, None], across[None, :]
    weights = [(1 - down) * (1 - across), (1 - down) * across, down * (1 - across), down * across]
    return merged(index, merge).astype(np.int64), merged(np.stack(weights, axis=-1), merge).astype(np.float32)
