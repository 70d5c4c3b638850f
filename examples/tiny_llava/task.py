"""The demo task: coloured handwritten digits on noise, and questions about them.

Pictures are drawn from scikit-learn's bundled handwritten digits (1,797 scans of 8x8 pixels), so no
download is needed. One picture shows several digits in different colours on a noisy background; a
question asks for the digit of one colour: "What digit is red?" -> "7".

Digits are split once, by a fixed permutation, into a training part and a held-out part. A held-out
question is about a scan that the model never saw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

PATCH = 8
GRID = 12  # image tokens per side
SIZE = PATCH * GRID  # pixels per side
SCALE = 3  # an 8x8 scan becomes 24x24 pixels: 3x3 patches
HELD_OUT = 360  # scans never shown in training

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (255, 40, 40),
    "green": (40, 220, 60),
    "blue": (60, 90, 255),
    "yellow": (250, 230, 40),
    "purple": (200, 60, 230),
    "white": (255, 255, 255),
}

Split = Literal["train", "held-out"]


@dataclass(frozen=True)
class Scene:
    """One picture and what is on it."""

    pixels: NDArray[np.uint8]  # [SIZE, SIZE, 3]
    colours: tuple[str, ...]
    digits: tuple[int, ...]
    corners: tuple[tuple[int, int], ...]  # (row, column) of each digit, in patches

    @property
    def image(self) -> Image.Image:
        return Image.fromarray(self.pixels)


def question(colour: str) -> str:
    return f"What digit is {colour}?"


class Scenes:
    """An endless seeded source of scenes from one split of the scans."""

    def __init__(self, split: Split, seed: int) -> None:
        scans, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(labels))
        part = order[HELD_OUT:] if split == "train" else order[:HELD_OUT]
        self._scans = (scans[part].reshape(-1, 8, 8) / 16.0).astype(np.float32)
        self._labels = labels[part].astype(int)
        self._rng = np.random.default_rng(seed)

    def draw(self, objects: int = 3) -> Scene:
        """Draw `objects` digits in different colours, at places that do not overlap."""
        rng = self._rng
        canvas = rng.uniform(0, 70, size=(SIZE, SIZE, 3)).astype(np.float32)
        colours = tuple(str(c) for c in rng.permutation(list(COLOURS))[:objects])
        chosen = rng.integers(len(self._labels), size=objects)
        corners = self._corners(objects)
        for colour, index, (row, col) in zip(colours, chosen, corners, strict=True):
            ink = np.kron(self._scans[index], np.ones((SCALE, SCALE), np.float32))[..., None]
            area = canvas[row * PATCH :, col * PATCH :][: 8 * SCALE, : 8 * SCALE]
            area *= 1 - ink
            area += ink * np.asarray(COLOURS[colour], np.float32)
        digits = tuple(int(self._labels[i]) for i in chosen)
        return Scene(canvas.astype(np.uint8), colours, digits, tuple(corners))

    def _corners(self, objects: int) -> list[tuple[int, int]]:
        """Places that do not overlap. Crowded ones can leave no room for the last, so they start anew."""
        side = 8 * SCALE // PATCH
        while True:
            corners: list[tuple[int, int]] = []
            for row, col in self._rng.integers(0, GRID - side + 1, size=(100, 2)).tolist():
                if all(abs(row - r) >= side or abs(col - c) >= side for r, c in corners):
                    corners.append((row, col))
                if len(corners) == objects:
                    return corners
