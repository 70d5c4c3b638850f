"""From logits to the next token: greedy, temperature, top-p."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastv_trt.errors import InputError


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Args:
        temperature: 0 is greedy; else logits are divided by it before the softmax.
        top_p: draw from the smallest set of most likely tokens whose probabilities reach this sum, in (0, 1].
        seed: of the draw; row i of a batch uses seed + i.

    Raises:
        InputError: a value is out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise InputError(f"expected a temperature of 0 or more, found {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise InputError(f"expected top_p in (0, 1], found {self.top_p}")
        if self.seed < 0:
            raise InputError(f"expected a seed of 0 or more, found {self.seed}")

    def generators(self, rows: int) -> list[np.random.Generator]:
        return [np.random.default_rng(self.seed + row) for row in range(rows)]

    def pick(self, logits: NDArray[np.float32], rng: np.random.Generator) -> int:
        """Next token id from logits [V]; the lowest id wins a tie under greedy."""
        if self.temperature == 0.0:
            return int(logits.argmax())
        scaled = logits.astype(np.float64) / self.temperature
        probabilities = np.exp(scaled - scaled.max())
        probabilities /= probabilities.sum()
        if self.top_p < 1.0:
            order = np.argsort(-probabilities, kind="stable")
            cumulative = np.cumsum(probabilities[order])
            keep = int(np.searchsorted(cumulative, self.top_p)) + 1
            nucleus = np.zeros_like(probabilities)
            nucleus[order[:keep]] = probabilities[order[:keep]]
            probabilities = nucleus / nucleus.sum()
        return int(rng.choice(len(probabilities), p=probabilities))
