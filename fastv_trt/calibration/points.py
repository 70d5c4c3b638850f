"""Operating points: what a sweep measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastv_trt.bundle import PruningRecord
from fastv_trt.errors import InputError
from fastv_trt.pruning import MASS_RANKINGS, Pruning

RATIOS = (0.25, 0.5, 0.625, 0.75, 0.875, 0.9)


@dataclass(frozen=True)
class Point:
    """A cut and a policy. R = 0 of each cut is its reference."""

    k: int
    pruning: Pruning

    @property
    def amount(self) -> str:
        """How much is dropped, as text: R=75%, or mass=0.9."""
        if self.pruning.mass is not None:
            return f"mass={self.pruning.mass:.6g}"
        return f"R={100 * (self.pruning.ratio or 0.0):.6g}%"

    @property
    def name(self) -> str:
        """Unique within a sweep."""
        return f"K={self.k} {self.pruning.ranking} {self.amount}"

    @property
    def reference(self) -> bool:
        return not self.pruning.asked

    def record(self) -> PruningRecord:
        """The policy as the manifest keeps it."""
        policy = self.pruning
        return PruningRecord(
            ratio=policy.ratio,
            mass=policy.mass,
            min_keep=policy.min_keep,
            max_keep=policy.max_keep,
            ranking=policy.ranking,
            scope=policy.scope,
            seed=policy.seed,
        )


def fixed_ratio(target: float) -> float:
    """R of a fixed share of tokens to keep."""
    return round(1.0 - target, 10)


@dataclass(frozen=True)
class Grid:
    """What to try at each cut.

    Attributes:
        ratios: values of R in (0, 1]; the reference R = 0 is always measured.
        rankings: names; None is all that the bundle has, random, uniform and diversity included.
        masses: values of `Pruning.mass`, for the rankings that have one.
        target_keeps: mean shares of image tokens to keep. For each, the mass that keeps as many on average is found on
            the samples, and measured beside the fixed R of the same cost.
        min_keep: of the masses.
    """

    ratios: tuple[float, ...] = RATIOS
    rankings: tuple[str, ...] | None = None
    masses: tuple[float, ...] = ()
    target_keeps: tuple[float, ...] = ()
    min_keep: int = 1

    def __post_init__(self) -> None:
        if not any((*self.ratios, *self.masses, *self.target_keeps)):
            raise InputError("expected a ratio above 0, a mass or a target share to try, found none")
        for target in self.target_keeps:
            if not 0.0 < target < 1.0:
                raise InputError(f"expected a share of image tokens to keep in (0, 1), found {target:g}")

    def names(self, offered: Sequence[str]) -> tuple[str, ...]:
        """Rankings to try in a bundle that has the attention rankings `offered`."""
        if self.rankings is not None:
            return self.rankings
        return (*offered, "diversity", "random", "uniform")

    def points(
        self, k: int, offered: Sequence[str], masses: Sequence[tuple[str, float, float]] = ()
    ) -> tuple[Point, ...]:
        """All points of one cut, the reference first.

        Args:
            offered: attention rankings of the bundle.
            masses: (ranking, target, mass) found for `target_keeps`.
        """
        names = self.names(offered)
        ratios = dict.fromkeys(r for r in (*self.ratios, *(fixed_ratio(t) for t in self.target_keeps)) if r)
        policies = [Pruning(ratio=0.0, ranking=names[0])]
        policies += [Pruning(ratio=ratio, ranking=name) for name in names for ratio in ratios]
        wanted = [*((n, m) for n in names if n in MASS_RANKINGS for m in self.masses), *((n, m) for n, _, m in masses)]
        policies += [Pruning(mass=m, ranking=n, min_keep=self.min_keep) for n, m in dict.fromkeys(wanted)]
        return tuple(Point(k, policy) for policy in dict.fromkeys(policies))
