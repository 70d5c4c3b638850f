"""From a bundle and samples to the recommended operating point, written into the bundle."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fastv_trt.bundle import Bundle
from fastv_trt.calibration.points import Grid
from fastv_trt.calibration.report import adaptive, markdown, summary
from fastv_trt.calibration.samples import Samples
from fastv_trt.calibration.sweep import Progress, Settings, sweep
from fastv_trt.calibration.table import Row, Table
from fastv_trt.errors import FastVError, InputError


@dataclass(frozen=True)
class Calibration:
    """What a calibration found.

    Attributes:
        table: every point.
        bundle: the one that the recommended point belongs to; None if no point keeps to the budget.
    """

    table: Table
    bundle: Bundle | None


def calibrate(
    bundle: Bundle,
    samples: Samples,
    settings: Settings,
    folder: Path,
    *,
    grid: Grid | None = None,
    ks: Sequence[int] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    on_progress: Progress = lambda what, done, total: None,
) -> Calibration:
    """Sweep a grid and recommend the cheapest point inside the budget. Nothing is written into a bundle.

    `folder` gets the state (a second call goes on from it), report.json, report.md, and, for every K that is not the
    bundle's own, a bundle cut there.

    Args:
        ks: cuts to try; by default the bundle's own.
        checkpoint: what the bundle was exported from; needed for other cuts, which are exported (needs torch).

    Raises:
        InputError: samples are too few or do not fit, another K without a checkpoint, or a foreign state.
    """
    settings.check(samples)
    folder.mkdir(parents=True, exist_ok=True)
    bundles = [_cut(bundle, k, checkpoint, folder, on_progress) for k in dict.fromkeys(ks or (bundle.manifest.k,))]
    table = sweep(bundles, samples, grid or Grid(), settings, folder, threads=threads, on_progress=on_progress)
    _write(table, folder)
    best = table.recommended
    found = next((b for b in bundles if best is not None and b.manifest.k == best.point.k), None)
    return Calibration(table, found)


def write_operating_point(calibration: Calibration, samples: Samples) -> Bundle:
    """Make the recommended point the default of its bundle; returns that bundle.

    Raises:
        FastVError: no point keeps to the budget; says which comes closest.
    """
    table, best = calibration.table, calibration.table.recommended
    if best is None or calibration.bundle is None:
        raise FastVError(nothing_inside(table))
    return calibration.bundle.with_operating_point(table.record(best, samples, "cpu"))


def nothing_inside(table: Table) -> str:
    """The message for a budget that no point keeps to."""
    best = table.best
    assert best is not None
    measured = best.measured
    return (
        f"expected a point that keeps to {table.budget} (decided by {table.decision}), found none; the best is "
        f"{best.point.name} with {measured.estimate:+.2f} [{measured.low:+.2f}, {measured.high:+.2f}]; allow more, "
        "give more samples, or try smaller ratios"
    )


def validate(
    bundle: Bundle, row: Row, samples: Samples, settings: Settings, folder: Path, *, threads: int | None = None
) -> Table:
    """Measure one point and its reference again on other samples. They are judged by the estimate.

    The point was chosen before, so nothing is selected here and its estimate is not flattered.

    Args:
        folder: for the state of this run.

    Raises:
        InputError: the samples are the ones that the point was chosen on, or do not fit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    policy = row.point.pruning
    grid = Grid(
        ratios=() if policy.ratio is None else (policy.ratio,),
        rankings=(policy.ranking,),
        masses=() if policy.mass is None else (policy.mass,),
        min_keep=policy.min_keep,
    )
    table = sweep([bundle], samples, grid, replace(settings, decision="estimate", cut=False), folder, threads=threads)
    _write(table, folder)
    return table


def _cut(
    bundle: Bundle, k: int, checkpoint: str | os.PathLike[str] | None, folder: Path, on_progress: Progress
) -> Bundle:
    if k == bundle.manifest.k:
        return bundle
    path = folder / f"bundle-k{k}"
    if not path.exists():
        if checkpoint is None:
            raise InputError(
                f"expected --checkpoint to cut at K={k}, found none; {bundle.path} is cut at K={bundle.manifest.k}"
            )
        from fastv_trt.export import export

        names = bundle.manifest.rankings or None
        export(
            checkpoint,
            path,
            k=k,
            dtype=bundle.manifest.dtype,
            rankings=names if k else None,
            on_step=lambda step, done, total: on_progress(f"export K={k}: {step}", done, total),
        )
    other = Bundle.open(path)
    if (other.manifest.k, other.manifest.dtype, other.manifest.model) != (
        k,
        bundle.manifest.dtype,
        bundle.manifest.model,
    ):
        raise InputError(
            f"expected {path} to be of the same model as {bundle.path}, cut at K={k}, found another; remove it or give "
            "the checkpoint that the bundle came from"
        )
    return other


def _write(table: Table, folder: Path) -> None:
    for name, text in (
        ("report.json", json.dumps(table.content(), indent=1) + "\n"),
        ("report.md", f"{summary(table)}\n\n{markdown(table)}\n{adaptive(table)}"),
    ):
        temporary = folder / f".{name}.partial"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(folder / name)
