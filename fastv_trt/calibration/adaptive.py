"""The mass that keeps a wanted share of image tokens on average."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastv_trt.errors import InputError
from fastv_trt.pruning import mass_count

STEPS = 40


def kept_share(scores: Sequence[NDArray[np.float32]], mass: float, least: int) -> float:
    """Mean share of image tokens that `mass` keeps over prompts with these scores, each [M]."""
    return float(np.mean([mass_count(s, mass, least, len(s)) / len(s) for s in scores]))


def find_mass(scores: Sequence[NDArray[np.float32]], target: float, least: int = 0) -> float:
    """The largest mass that keeps at most the share `target` on average, by bisection.

    Raises:
        InputError: the least that may be kept is more than the target already.
    """
    floor = kept_share(scores, 1e-9, least)
    if floor > target:
        raise InputError(f"expected a target of {floor:.3f} or more with these bounds, found {target:g}")
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if kept_share(scores, middle, least) <= target:
            low = middle
        else:
            high = middle
    return round(low, 6) or 1e-6
