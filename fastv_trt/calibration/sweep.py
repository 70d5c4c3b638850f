"""The sweep: every point on every sample, cut by cut, with points given up as soon as they cannot win."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastv_trt.bundle import Bundle
from fastv_trt.calibration.adaptive import find_mass
from fastv_trt.calibration.budget import Budget, Decision
from fastv_trt.calibration.measure import Bench
from fastv_trt.calibration.metrics import metric
from fastv_trt.calibration.points import Grid, Point, fixed_ratio
from fastv_trt.calibration.samples import Samples
from fastv_trt.calibration.state import Measured, State, described
from fastv_trt.calibration.table import Comparison, Row, Table, compare, tabulate
from fastv_trt.errors import InputError
from fastv_trt.pruning import MASS_RANKINGS
from fastv_trt.runtime import Runtime

LOOK_FIRST, LOOK_EVERY = 50, 25
CUT_CONFIDENCE = 0.999
SAVE_SECONDS = 10.0

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Settings:
    """How a sweep measures and decides.

    Attributes:
        budget: what may be lost.
        decision: "bound" takes a point for inside the budget if its unfavourable confidence bound is; "estimate" if its
            estimate is.
        confidence: of the bounds, one-sided.
        metric: exact, contains, module:function or file.py:function; used where samples have answers.
        new_tokens: per answer, at most.
        cut: whether points that cannot win are given up.
    """

    budget: Budget
    decision: Decision = "bound"
    confidence: float = 0.95
    metric: str = "exact"
    new_tokens: int = 32
    cut: bool = True

    def __post_init__(self) -> None:
        if not 0.5 < self.confidence < 1.0:
            raise InputError(f"expected a confidence between 0.5 and 1, found {self.confidence:g}")
        if self.new_tokens < 1:
            raise InputError(f"expected 1 or more new tokens, found {self.new_tokens}")
        if self.decision not in ("bound", "estimate"):
            raise InputError(f"expected to decide by bound or estimate, found {self.decision!r}")

    def check(self, samples: Samples) -> None:
        """Raise InputError if these samples cannot be judged this way, or are too few."""
        if self.budget.measure == "accuracy" and not samples.answered:
            raise InputError(
                f"expected answers in {samples.source} for the budget {self.budget}, found none; "
                "use agreement, kl or kl-forced"
            )
        if self.budget.measure == "kl-forced" and samples.answered:
            raise InputError(
                f"expected samples without answers for {self.budget}, found answers in {samples.source}; "
                "use accuracy, agreement or kl"
            )
        if self.decision == "bound":
            self.budget.check_samples(len(samples.items), self.confidence)


def sweep(
    bundles: Sequence[Bundle],
    samples: Samples,
    grid: Grid,
    settings: Settings,
    folder: Path,
    *,
    threads: int | None = None,
    on_progress: Progress = lambda what, done, total: None,
) -> Table:
    """Measure a grid on bundles of one model that are cut at different layers, or go on where it stopped.

    A point is given up, after 50 samples and then after every 25, once the favourable bound of its measure at
    confidence 0.999 breaks the budget: it cannot win any more. It stays in the table with what was measured. Points of
    `Grid.target_keeps` are measured to the end, because they are compared with each other.

    Args:
        folder: for the state.

    Raises:
        InputError: samples, rankings or the state do not fit.
    """
    settings.check(samples)
    asked = described(
        bundles=[[f.sha256 for f in bundle.manifest.files if f.path.startswith("onnx/")] for bundle in bundles],
        samples=samples.sha256,
        grid=grid,
        settings=settings,
    )
    state = State.open(folder, asked)
    judge = metric(settings.metric) if samples.answered else None
    rows: list[Row] = []
    comparisons: list[Comparison] = []
    for index, bundle in enumerate(bundles):
        k = bundle.manifest.k
        bench = Bench(Runtime.load(bundle, threads=threads), judge, settings.new_tokens)
        names = grid.names(bundle.manifest.rankings)
        for name in names:
            if name == "external":
                raise InputError("expected rankings that need no scores from outside, found 'external'")
            if name not in ("diversity", "random", "uniform"):
                bench.runtime.chain.check_ranking(name)
        measured = state.cuts.setdefault(k, Measured())
        if measured.masses is None:
            measured.masses = _masses(bench, samples, grid, names, _share(on_progress, f"K={k} masses", 0, 1))
        points = grid.points(k, bundle.manifest.rankings, measured.masses)
        _measure(bench, samples, points, measured, settings, state, _share(on_progress, f"K={k}", index, len(bundles)))
        own = tabulate(points, measured, settings.budget, settings.confidence)
        rows += own
        comparisons += compare(own, measured, settings.confidence)
    return Table(
        tuple(rows),
        settings.budget,
        settings.decision,
        settings.confidence,
        len(samples.items),
        tuple(comparisons),
    )


def _share(on_progress: Progress, what: str, index: int, count: int) -> Progress:
    return lambda _, done, total: on_progress(what, index * total + done, count * total)


def _masses(
    bench: Bench, samples: Samples, grid: Grid, names: Sequence[str], on_progress: Progress
) -> list[tuple[str, float, float]]:
    """The mass of every target share and attention ranking."""
    attention = [name for name in names if name in MASS_RANKINGS]
    if not grid.target_keeps or not attention:
        return []
    found = []
    for done, item in enumerate(samples.items):
        on_progress("", done, len(samples.items))
        found.append(bench.scores(item, attention))
    return [
        (name, target, find_mass([scores[name] for scores in found], target, grid.min_keep))
        for name in attention
        for target in grid.target_keeps
    ]


def _measure(
    bench: Bench,
    samples: Samples,
    points: Sequence[Point],
    measured: Measured,
    settings: Settings,
    state: State,
    on_progress: Progress,
) -> None:
    outcomes = measured.outcomes
    for point in points:
        outcomes.setdefault(point.name, [])
    start = min(len(outcomes[point.name]) for point in points if point.name not in measured.cut)
    for point in points:
        if point.name not in measured.cut:
            del outcomes[point.name][start:]  # a run that was interrupted while it wrote down a sample
    reference, compared = points[0], _compared(points, measured)
    saved = time.monotonic()
    if start < len(samples.items):
        bench.outcomes(samples.items[start], points[:1], 0)  # the first run of a session is slower
    try:
        for done in range(start, len(samples.items)):
            on_progress("", done, len(samples.items))
            live = [point for point in points if point.name not in measured.cut]
            for point, outcome in bench.outcomes(samples.items[done], live, done).items():
                outcomes[point.name].append(outcome)
            count = done + 1
            if settings.cut and count >= LOOK_FIRST and count % LOOK_EVERY == 0:
                for point in live[1:]:
                    if point.name in compared:
                        continue
                    seen = settings.budget.interval(outcomes[point.name], outcomes[reference.name], CUT_CONFIDENCE)
                    if settings.budget.hopeless(seen):
                        measured.cut.add(point.name)
            if time.monotonic() - saved > SAVE_SECONDS:
                state.save()
                saved = time.monotonic()
    finally:
        state.save()


def _compared(points: Sequence[Point], measured: Measured) -> set[str]:
    """Names of the masses that were found for a mean share, and of the fixed R beside them."""
    masses = {(ranking, mass, None) for ranking, _, mass in measured.masses or ()}
    fixed = {(ranking, None, fixed_ratio(target)) for ranking, target, _ in measured.masses or ()}
    policies = {point.name: (point.pruning.ranking, point.pruning.mass, point.pruning.ratio) for point in points}
    return {name for name, policy in policies.items() if policy in masses | fixed}
