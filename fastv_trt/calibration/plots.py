"""Two pictures: quality against time to first token, and quality over K and R. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastv_trt.calibration.table import Row, Table

BEHIND = {"facecolor": "white", "alpha": 0.6, "lw": 0, "pad": 1}
LABELS = {
    "accuracy": "accuracy against R = 0 (points)",
    "agreement": "answers as at R = 0 (%)",
    "kl": "KL of the first token (nats)",
    "kl-forced": "KL, teacher-forced (nats)",
}


def draw(table: Table, folder: Path) -> tuple[Path, ...]:
    """Write tradeoff.png (the paper's fig. 1) and heatmap.png (fig. 7, per ranking) into `folder`; returns paths."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    paths = (folder / "tradeoff.png", folder / "heatmap.png")
    for make, path in zip((_tradeoff, _heatmap), paths, strict=True):
        figure = make(pyplot, table)
        figure.savefig(path, dpi=110)
        pyplot.close(figure)
    return paths


def _tradeoff(pyplot: Any, table: Table) -> Any:
    ks, rankings = _ks(table), _rankings(table)
    figure, axes = pyplot.subplots(1, len(ks), figsize=(4.4 * len(ks), 4.2), sharey=True, squeeze=False)
    colours = {name: f"C{index}" for index, name in enumerate(rankings)}
    for axis, k in zip(axes[0], ks, strict=True):
        for name in rankings:
            fixed = [row for row in table.rows if _is(row, k, name) and row.point.pruning.mass is None]
            masses = [row for row in table.rows if _is(row, k, name) and row.point.pruning.mass is not None]
            fixed.sort(key=lambda row: row.ttft_ratio.estimate)
            axis.plot(*_places(fixed), "-o", ms=3, lw=1, color=colours[name], label=name)
            axis.plot(*_places(masses), "^", ms=6, color=colours[name], mfc="none")
        given_up = [row for row in table.rows if row.cut and row.point.k == k]
        axis.plot(*_places(given_up), "x", ms=7, color="black", alpha=0.5, label="given up early")
        front = [row for row in table.front if row.point.k == k]
        axis.plot(*_places(front), "o", ms=9, mfc="none", color="black", label="Pareto front")
        best = table.recommended
        if best is not None and best.point.k == k:
            axis.plot(*_places([best]), "*", ms=14, color="gold", mec="black", label="recommended", zorder=9)
        axis.axhline(table.budget.limit, color="black", ls=":", lw=1)
        axis.set_title(f"K = {k}")
        axis.set_xlabel("TTFT relative to R = 0")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel(LABELS[table.budget.measure])
    handles: dict[str, Any] = {}
    for axis in axes[0]:
        handles |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), ncols=5, fontsize=8, loc="lower center")
    figure.tight_layout(rect=(0, 0.13, 1, 1))
    return figure


def _heatmap(pyplot: Any, table: Table) -> Any:
    ks, rankings = _ks(table), _rankings(table)
    rows = [row for row in table.rows if not row.point.reference and row.point.pruning.mass is None]
    ratios = sorted({row.point.pruning.ratio or 0.0 for row in rows})
    values = [row.measured.estimate for row in rows] or [0.0]
    wide = min(4, len(rankings))
    high = -(-len(rankings) // wide)
    figure, axes = pyplot.subplots(
        high, wide, figsize=(3.6 * wide, (0.9 + 0.5 * len(ks)) * high + 0.6), squeeze=False, layout="constrained"
    )
    image = None
    for axis, name in zip(axes.flat, rankings, strict=False):
        grid = [[_value(rows, k, name, ratio) for ratio in ratios] for k in ks]
        colours = "viridis" if table.budget.upwards else "viridis_r"
        image = axis.imshow(grid, aspect="auto", vmin=min(values), vmax=max(values), cmap=colours)
        for y, line in enumerate(grid):
            for x, value in enumerate(line):
                shown = "" if math.isnan(value) else f"{value:.1f}"
                axis.text(x, y, shown, ha="center", va="center", fontsize=7, bbox=BEHIND)
        axis.set_title(name, fontsize=9)
        axis.set_xticks(range(len(ratios)), [f"{100 * ratio:g}" for ratio in ratios], fontsize=7)
        axis.set_yticks(range(len(ks)), [f"K={k}" for k in ks], fontsize=8)
    for axis in list(axes.flat)[len(rankings) :]:
        axis.axis("off")
    figure.supxlabel("R, image tokens dropped (%)", fontsize=9)
    figure.colorbar(image, ax=axes, label=LABELS[table.budget.measure])
    return figure


def _ks(table: Table) -> list[int]:
    return sorted({row.point.k for row in table.rows})


def _rankings(table: Table) -> list[str]:
    return list(dict.fromkeys(row.point.pruning.ranking for row in table.rows if not row.point.reference))


def _is(row: Row, k: int, ranking: str) -> bool:
    return not row.point.reference and row.point.k == k and row.point.pruning.ranking == ranking


def _places(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    return [row.ttft_ratio.estimate for row in rows], [row.measured.estimate for row in rows]


def _value(rows: Sequence[Row], k: int, ranking: str, ratio: float) -> float:
    found = [row for row in rows if _is(row, k, ranking) and row.point.pruning.ratio == ratio]
    return found[0].measured.estimate if found else float("nan")
