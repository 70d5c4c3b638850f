"""What a sweep found: one row per point, the Pareto front, the recommendation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fastv_trt import __version__
from fastv_trt.bundle import OperatingPointRecord
from fastv_trt.calibration.budget import Budget, Decision, Outcome
from fastv_trt.calibration.points import Point, fixed_ratio
from fastv_trt.calibration.samples import Samples
from fastv_trt.calibration.state import Measured
from fastv_trt.calibration.statistics import Interval, bootstrap, paired, wilson


@dataclass(frozen=True)
class Row:
    """One point over the samples that it was measured on.

    Attributes:
        samples: how many; fewer than all if it was given up.
        accuracy: percent of right answers, with bounds; None without answers.
        agreement: percent of answers equal to those at R = 0, with bounds.
        kl, kl_forced: mean KL to R = 0 in nats, of the first token and of all; the latter only without answers.
        kept: mean share of image tokens kept.
        ttft: median seconds to first token.
        ttft_ratio: median of TTFT over TTFT at R = 0 of the same sample, with bounds.
        measured: the budget's measure, in its unit.
    """

    point: Point
    samples: int
    cut: bool
    accuracy: Interval | None
    agreement: Interval
    kl: float
    kl_forced: float | None
    kept: float
    ttft: float
    ttft_ratio: Interval
    measured: Interval

    def quality(self, budget: Budget) -> float:
        """What the front and the plots show: higher is better."""
        if budget.measure == "accuracy":
            return self.measured.estimate
        return self.measured.estimate if budget.upwards else -self.measured.estimate


@dataclass(frozen=True)
class Comparison:
    """A mass beside the fixed R that keeps as many tokens on average.

    Attributes:
        difference: adaptive less fixed, paired, with bounds: accuracy in points, or agreement without answers.
        samples: that both were measured on.
    """

    adaptive: Row
    fixed: Row
    difference: Interval
    samples: int


@dataclass(frozen=True)
class Table:
    """All rows of a sweep and how they are judged."""

    rows: tuple[Row, ...]
    budget: Budget
    decision: Decision
    confidence: float
    samples: int
    comparisons: tuple[Comparison, ...] = ()

    @property
    def candidates(self) -> tuple[Row, ...]:
        """Rows that prune and were not given up."""
        return tuple(row for row in self.rows if not row.point.reference and not row.cut)

    @property
    def front(self) -> tuple[Row, ...]:
        """Rows that no other row beats in both relative TTFT and quality, cheapest first; R = 0 included."""
        rows = [row for row in self.rows if not row.cut]
        rows.sort(key=lambda row: (row.ttft_ratio.estimate, -row.quality(self.budget)))
        best, front = float("-inf"), []
        for row in rows:
            if row.quality(self.budget) > best:
                best = row.quality(self.budget)
                front.append(row)
        return tuple(front)

    @property
    def recommended(self) -> Row | None:
        """The cheapest row inside the budget; None if there is none."""
        inside = [row for row in self.candidates if self.inside(row)]
        return min(inside, key=lambda row: row.ttft_ratio.estimate, default=None)

    @property
    def best(self) -> Row | None:
        """The row that comes closest to the budget, for the message that none keeps it."""
        return max((row for row in self.rows if not row.point.reference), key=self._worst, default=None)

    def _worst(self, row: Row) -> float:
        """What the budget is decided on; higher is better."""
        measured, upwards = row.measured, self.budget.upwards
        if self.decision == "estimate":
            return measured.estimate if upwards else -measured.estimate
        return measured.low if upwards else -measured.high

    def inside(self, row: Row) -> bool:
        return self.budget.kept(row.measured, self.decision)

    def reference(self, k: int) -> Row:
        """R = 0 of one cut."""
        return next(row for row in self.rows if row.point.reference and row.point.k == k)

    def record(self, row: Row, samples: Samples, device: str) -> OperatingPointRecord:
        """A row as the manifest keeps it."""
        base = self.reference(row.point.k)
        reference = {"accuracy": base.accuracy.estimate if base.accuracy else 0.0, "agreement": 100.0}
        return OperatingPointRecord(
            pruning=row.point.record(),
            tool=f"fastv-trt {__version__}",
            device=device,
            samples=row.samples,
            samples_sha256=samples.sha256,
            budget=str(self.budget),
            measure=self.budget.measure,
            reference=reference.get(self.budget.measure, 0.0),
            quality=row.measured.estimate,
            low=row.measured.low,
            high=row.measured.high,
            confidence=self.confidence,
            ttft_ratio=row.ttft_ratio.estimate,
            kept_share=row.kept,
        )

    def content(self) -> dict[str, Any]:
        """All of it as a JSON document."""
        front = {row.point.name for row in self.front}
        best = self.recommended
        return {
            "budget": str(self.budget),
            "decision": self.decision,
            "confidence": self.confidence,
            "samples": self.samples,
            "recommended": None if best is None else best.point.name,
            "points": [
                {
                    "name": row.point.name,
                    "k": row.point.k,
                    **row.point.record().model_dump(),
                    "on_front": row.point.name in front,
                    "inside_budget": self.inside(row) and not row.cut,
                    **{key: value for key, value in asdict(row).items() if key != "point"},
                }
                for row in self.rows
            ],
            "adaptive": [
                {
                    "adaptive": c.adaptive.point.name,
                    "fixed": c.fixed.point.name,
                    "samples": c.samples,
                    "difference": asdict(c.difference),
                }
                for c in self.comparisons
            ],
        }


def tabulate(points: Sequence[Point], measured: Measured, budget: Budget, confidence: float) -> list[Row]:
    """Rows of one cut, the reference first."""
    reference = measured.outcomes[points[0].name]
    return [
        _row(point, measured.outcomes[point.name], reference, point.name in measured.cut, budget, confidence)
        for point in points
    ]


def compare(rows: Sequence[Row], measured: Measured, confidence: float) -> list[Comparison]:
    """Every mass that was found for a mean share, beside the R = 1 - share of the same ranking."""
    by_policy = {(r.point.pruning.ranking, r.point.pruning.mass, r.point.pruning.ratio): r for r in rows}
    found = []
    for ranking, target, mass in measured.masses or ():
        adaptive = by_policy[ranking, mass, None]
        fixed = by_policy[ranking, None, fixed_ratio(target)]
        pairs = zip(measured.outcomes[adaptive.point.name], measured.outcomes[fixed.point.name], strict=False)
        differences = [_quality(a) - _quality(b) for a, b in pairs]
        found.append(Comparison(adaptive, fixed, paired(differences, confidence).percent, len(differences)))
    return found


def _quality(outcome: Outcome) -> float:
    return float(outcome.match) if outcome.quality is None else outcome.quality


def _row(
    point: Point, own: list[Outcome], reference: list[Outcome], cut: bool, budget: Budget, confidence: float
) -> Row:
    answered = own[0].quality is not None
    forced = [o.kl_forced for o in own if o.kl_forced is not None]
    ratios = [a.ttft / b.ttft for a, b in zip(own, reference, strict=False)]
    return Row(
        point=point,
        samples=len(own),
        cut=cut,
        accuracy=wilson([o.quality or 0.0 for o in own], confidence).percent if answered else None,
        agreement=wilson([float(o.match) for o in own], confidence).percent,
        kl=float(np.mean([o.kl for o in own])),
        kl_forced=float(np.mean(forced)) if forced else None,
        kept=float(np.mean([o.kept for o in own])),
        ttft=float(np.median([o.ttft for o in own])),
        ttft_ratio=bootstrap(ratios, confidence, median=True),
        measured=budget.interval(own, reference, confidence),
    )
