"""Points as rows of a table: statistics, ratios, and what the cost model says beside them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from fastv_trt import cost
from fastv_trt.bench.measure import DECODER, PARTS, Point
from fastv_trt.bundle import Bundle


def statistics_of(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds: min, median, p95, p99. With few values the upper ones are the largest."""
    ordered = sorted(1e3 * value for value in seconds)

    def quantile(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {"min": ordered[0], "median": statistics.median(ordered), "p95": quantile(0.95), "p99": quantile(0.99)}


def as_rows(bundle: Bundle, points: Sequence[Point], prompt_tokens: int, image_tokens: int) -> list[dict[str, Any]]:
    """One row per point, each against R = 0 (the first point); times in milliseconds."""
    model, k, base = bundle.manifest.model, bundle.manifest.k, points[0]
    whole = cost.prefill_flops(model, k, prompt_tokens, prompt_tokens)
    rows = []
    for point in points:
        remaining = prompt_tokens - image_tokens + point.kept
        step = statistics.median(point.steps) if point.steps else None
        rows.append(
            {
                "ratio": point.ratio,
                "batch": point.batch,
                "kept_tokens": point.kept,
                "ttft_ms": statistics_of(point.sums(PARTS)),
                "decoder_prefill_ms": statistics_of(point.sums(DECODER)),
                "parts_ms": {name: statistics_of(point.sums((name,))) for name in PARTS},
                "decoder_ratio": point.against(base, DECODER),
                # Noise only ever adds time, so on a noisy machine this one says more than the medians.
                "fastest_ratio": min(point.sums(DECODER)) / min(base.sums(DECODER)),
                "ideal_ratio": cost.prefill_flops(model, k, prompt_tokens, remaining) / whole,
                "ttft_ratio": point.against(base, PARTS),
                "rank_share": statistics.median(
                    parts["rank+select"] / total
                    for parts, total in zip(point.prefills, point.sums(DECODER), strict=True)
                ),
                "tpot_ms": None if step is None else statistics_of(point.steps),
                "tokens_per_second": None if step is None else point.batch / step,
                "kv_bytes": point.kv_bytes,
                "rounds": point.prefills,
            }
        )
    return rows


def plot(rows: Sequence[dict[str, Any]], path: Any, title: str) -> None:
    """Bars of TTFT by part, and decoder prefill against R beside the cost model, as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in rows if row["batch"] == rows[0]["batch"]]
    labels = [f"{row['ratio']:.0%}" for row in rows]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    bottom = [0.0] * len(rows)
    for name in PARTS:
        heights = [row["parts_ms"][name]["median"] for row in rows]
        left.bar(labels, heights, bottom=bottom, label=name)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    left.set(xlabel="R, image tokens dropped", ylabel="ms", title="time to first token")
    left.legend()
    ordered = sorted(rows, key=lambda row: float(row["ratio"]))
    ratios = [row["ratio"] for row in ordered]
    right.plot(ratios, [row["decoder_ratio"] for row in ordered], "o-", label="measured")
    right.plot(ratios, [row["ideal_ratio"] for row in ordered], "x--", label="cost model (FLOPs)")
    right.set(xlabel="R", ylabel="of R = 0", ylim=(0, 1.05), title="decoder prefill")
    right.legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
