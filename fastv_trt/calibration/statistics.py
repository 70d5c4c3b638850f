"""Confidence intervals of what was measured, and how many samples a statement needs.

Bounds are one-sided: "with confidence 0.95 not worse than". An interval of two of them has 0.90.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

RESAMPLES = 1000


@dataclass(frozen=True)
class Interval:
    """An estimate with its lower and upper bound."""

    estimate: float
    low: float
    high: float

    @property
    def percent(self) -> Interval:
        """A hundred times as much."""
        return Interval(100 * self.estimate, 100 * self.low, 100 * self.high)


def wilson(values: Sequence[float], confidence: float) -> Interval:
    """Wilson's interval of a mean of values in [0, 1]. For values between 0 and 1 it is wider than need be."""
    n, mean, z = len(values), float(np.mean(values)), quantile(confidence)
    middle = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    return Interval(mean, max(0.0, middle - half), min(1.0, middle + half))


def paired(differences: Sequence[float], confidence: float) -> Interval:
    """Interval of a mean of paired differences in [-1, 1].

    The normal interval after adding z^2 made-up pairs, half of them +1 and half -1 (the idea of Agresti and Coull,
    and of Agresti and Min for pairs). Without them, samples that all agree would give an interval of no width; with
    them it is the Wilson bound z^2 / (n + z^2).
    """
    z = quantile(confidence)
    values = np.asarray(differences, dtype=np.float64)
    n = len(values) + z * z
    mean = float(values.sum()) / n
    half = z * math.sqrt(max(0.0, (float((values**2).sum()) + z * z) / n - mean**2) / n)
    return Interval(float(values.mean()), max(-1.0, mean - half), min(1.0, mean + half))


def bootstrap(values: Sequence[float], confidence: float, median: bool = False) -> Interval:
    """Percentile bootstrap of a mean (or median) of unbounded values; seeded, so that it can be repeated."""
    data = np.asarray(values, dtype=np.float64)
    middle = np.median if median else np.mean
    drawn = np.random.default_rng(0).integers(len(data), size=(RESAMPLES, len(data)))
    means = middle(data[drawn], axis=1)
    return Interval(
        float(middle(data)), float(np.quantile(means, 1 - confidence)), float(np.quantile(means, confidence))
    )


def samples_needed(loss: float, confidence: float) -> int:
    """Samples of which none may differ before `paired` can tell that no more than `loss` (in 0..1) is lost."""
    z = quantile(confidence)
    return math.ceil(z * z * (1 - loss) / loss)


def quantile(confidence: float) -> float:
    """The normal quantile z of a one-sided confidence."""
    return NormalDist().inv_cdf(confidence)
