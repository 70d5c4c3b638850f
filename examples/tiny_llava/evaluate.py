"""Accuracy of the demo model on held-out questions, pruned at every K, R and ranking of a grid.

    python examples/tiny_llava/evaluate.py

Everything goes through exported bundles and the runtime. Prints a Markdown table and writes it, with a plot
and the raw counts, into docs/. The questions are about scans that training never saw, drawn with a seed that
training does not use; the same questions are asked at every point of the grid.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from rich.progress import Progress
from task import Scenes, question

from fastv_trt.export import export
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Limits, Request, Runtime

HERE = Path(__file__).parent
RANKINGS = ("last-query", "received", "random", "uniform")
SEED = 424242


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, default=HERE / "checkpoint")
    parser.add_argument("--pictures", type=int, default=200, help="three questions each")
    parser.add_argument("--k", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.5, 0.75, 0.9])
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "docs")
    args = parser.parse_args()

    source = Scenes("held-out", seed=SEED)
    scenes = [source.draw() for _ in range(args.pictures)]
    points: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, Progress() as progress:
        task = progress.add_task("evaluate", total=len(args.k) * (1 + len(args.ratios) * len(RANKINGS)))
        for k in args.k:
            runtime = Runtime.load(export(args.checkpoint, Path(folder) / f"k{k}", k=k).bundle)
            asked: list[tuple[Request, str]] = [
                (runtime.request(question(colour), [scene.image]), str(digit))
                for scene in scenes
                for colour, digit in zip(scene.colours, scene.digits, strict=True)
            ]
            grid = [(0.0, "last-query"), *((ratio, name) for ratio in args.ratios for name in RANKINGS)]
            for ratio, ranking in grid:
                policy = Pruning(ratio=ratio, ranking=ranking)
                right = sum(
                    runtime.answers([request], policy, Limits(2))[0].text == answer for request, answer in asked
                )
                points.append({"k": k, "ratio": ratio, "ranking": ranking, "right": right, "questions": len(asked)})
                progress.advance(task)
    table = markdown(points)
    print(table)
    args.out.mkdir(exist_ok=True)
    (args.out / "accuracy.json").write_text(json.dumps(points, indent=1) + "\n", encoding="utf-8")
    (args.out / "accuracy.md").write_text(page(table, points), encoding="utf-8")
    plot(points, args.out / "accuracy.png")


def accuracy(points: list[dict[str, Any]], k: int, ratio: float, ranking: str) -> float:
    for point in points:
        if point["k"] == k and point["ratio"] == ratio and (ranking == point["ranking"] or ratio == 0):
            return float(point["right"] / point["questions"])
    raise KeyError((k, ratio, ranking))


def markdown(points: list[dict[str, Any]]) -> str:
    ratios = sorted({point["ratio"] for point in points})
    lines = ["| K | ranking | " + " | ".join(f"R = {ratio:.0%}" for ratio in ratios) + " |"]
    lines.append("|---|---|" + "---|" * len(ratios))
    for k in sorted({point["k"] for point in points}):
        for ranking in RANKINGS:
            cells = [f"{100 * accuracy(points, k, ratio, ranking):.1f}" for ratio in ratios]
            lines.append(f"| {k} | {ranking} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(table: str, points: list[dict[str, Any]]) -> str:
    count = points[0]["questions"]
    base = points[0]["right"] / count
    half = 100 * 1.96 * math.sqrt(base * (1 - base) / count)
    return f"""# Accuracy of the demo model

Written by `python examples/tiny_llava/evaluate.py`: right answers in percent on {count} questions about held-out
digits, three per picture, the same questions everywhere. 95 % interval of the unpruned figure: ± {half:.1f} points.

{table}

![accuracy against R](accuracy.png)
"""


def plot(points: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    ks, ratios = sorted({p["k"] for p in points}), sorted({p["ratio"] for p in points})
    figure, axes = pyplot.subplots(1, len(ks), figsize=(4 * len(ks), 3.6), sharey=True, squeeze=False)
    for axis, k in zip(axes[0], ks, strict=True):
        for ranking in RANKINGS:
            values = [100 * accuracy(points, k, ratio, ranking) for ratio in ratios]
            axis.plot([100 * ratio for ratio in ratios], values, marker="o", label=ranking)
        axis.set_title(f"K = {k}")
        axis.set_xlabel("R, image tokens dropped (%)")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("right answers (%)")
    axes[0][-1].legend(fontsize=8, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
