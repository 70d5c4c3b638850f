"""What quality may be lost, and which points keep to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fastv_trt.calibration.statistics import Interval, bootstrap, paired, samples_needed, wilson
from fastv_trt.errors import InputError

Decision = Literal["bound", "estimate"]
Measure = Literal["accuracy", "agreement", "kl", "kl-forced"]
MEASURES: dict[str, str] = {
    "accuracy": ">=",
    "agreement": ">=",
    "kl": "<=",
    "kl-forced": "<=",
}
"""Measure -> the direction of its budget."""

LEAST_SAMPLES = 30
"""Fewest samples for a bound of KL, whose spread is unknown beforehand."""


@dataclass(frozen=True)
class Outcome:
    """One sample at one point.

    Attributes:
        quality: of the answer, in [0, 1]; None without answers.
        match: whether the greedy tokens are those of R = 0.
        kl: KL(R = 0 || point) of the first token, nats.
        kl_forced: its mean over the tokens of R = 0's answer, teacher-forced; None with answers.
        kept: share of image tokens kept.
        ttft: seconds to first token.
    """

    quality: float | None
    match: bool
    kl: float
    kl_forced: float | None
    kept: float
    ttft: float


@dataclass(frozen=True)
class Budget:
    """A bound on one measure.

    `accuracy >= -0.5`: at most half a point of accuracy lost against R = 0. `agreement >= 95`: percent of answers
    equal to those at R = 0. `kl <= 0.05`, `kl-forced <= 0.05`: mean KL in nats, of the first token or of all.
    """

    measure: Measure
    limit: float

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read "accuracy >= -0.5".

        Raises:
            InputError: not a budget, or its sign points the wrong way.
        """
        found = re.fullmatch(r"\s*([a-z-]+)\s*(>=|<=)\s*([-+]?[0-9]*\.?[0-9]+)\s*", text)
        if found is None or found[1] not in MEASURES:
            raise InputError(f"expected a budget such as 'accuracy >= -0.5' (of {', '.join(MEASURES)}), found {text!r}")
        if found[2] != MEASURES[found[1]]:
            raise InputError(f"expected {found[1]} {MEASURES[found[1]]} a number, found {text!r}")
        return cls(found[1], float(found[3]))  # type: ignore[arg-type]  # checked above

    def __str__(self) -> str:
        return f"{self.measure} {MEASURES[self.measure]} {self.limit:g}"

    @property
    def upwards(self) -> bool:
        """Whether more is better."""
        return MEASURES[self.measure] == ">="

    def interval(self, outcomes: Sequence[Outcome], reference: Sequence[Outcome], confidence: float) -> Interval:
        """The measure over samples that both lists share from the first on, in the budget's unit."""
        pairs = list(zip(outcomes, reference, strict=False))
        if self.measure == "accuracy":
            return paired([(a.quality or 0.0) - (b.quality or 0.0) for a, b in pairs], confidence).percent
        if self.measure == "agreement":
            return wilson([float(a.match) for a, _ in pairs], confidence).percent
        values = [a.kl if self.measure == "kl" else (a.kl_forced or 0.0) for a, _ in pairs]
        return bootstrap(values, confidence)

    def kept(self, interval: Interval, decision: Decision) -> bool:
        """Whether a measure keeps to the budget: its unfavourable bound, or its estimate."""
        if decision == "estimate":
            return self._inside(interval.estimate)
        return self._inside(interval.low if self.upwards else interval.high)

    def hopeless(self, interval: Interval) -> bool:
        """Whether even the favourable bound breaks the budget."""
        return not self._inside(interval.high if self.upwards else interval.low)

    def check_samples(self, count: int, confidence: float) -> None:
        """Raise InputError if `count` samples can never show that this budget is kept, with how many could."""
        loss = {"accuracy": -self.limit / 100, "agreement": 1 - self.limit / 100}.get(self.measure)
        if loss is not None and loss <= 0:
            raise InputError(
                f"expected a budget that some number of samples can show, found {self}; allow a loss, or decide by "
                "the estimate"
            )
        needed = LEAST_SAMPLES if loss is None else samples_needed(loss, confidence)
        if count < needed:
            raise InputError(
                f"expected {needed} or more samples to tell {self} with confidence {confidence:g}, found {count}; "
                "give more, allow more, or decide by the estimate"
            )

    def _inside(self, value: float) -> bool:
        return value >= self.limit if self.upwards else value <= self.limit
