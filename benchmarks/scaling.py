"""How cost grows with image tokens N, R, K, layers and batch: measured beside the formula, as tables and a plot.

    python benchmarks/scaling.py [--json F] [--plot F]

The layers have the 0.5B shape; few of them keep it short. Every point is the median of --rounds, and every sweep is
shown against its own first point, as the formula is: a straight agreement means that the formula's proportions hold.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from pathlib import Path
from typing import Any

import make_model
from prefill import HERE

from fastv_trt import bench, cost
from fastv_trt.bundle import Bundle
from fastv_trt.export import export
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Runtime

TEXT, POSITIONS = 64, 16384
LAYERS, K = 4, 1


def bundle_of(cache: Path, layers: int, k: int) -> Bundle:
    """The bundle of a model of `layers` layers cut at `k`, made if it is not there."""
    checkpoint, folder = cache / f"scaling-{layers}", cache / f"scaling-{layers}-k{k}"
    if not checkpoint.exists():
        make_model.make(checkpoint, layers=layers, positions=POSITIONS)
    return Bundle.open(folder) if folder.exists() else export(checkpoint, folder, k=k).bundle


def point(runtime: Runtime, image: int, ratio: float, batch: int, rounds: int, steps: int) -> dict[str, Any]:
    """Milliseconds of one prompt's decoder prefill and of one decode step of the batch, and the formula's FLOPs."""
    manifest, pruning = runtime.bundle.manifest, Pruning(ratio=ratio)
    request = bench.image_request(runtime.bundle, TEXT, image)
    prompt = bench.Prompt(lambda: request, len(request.input_ids), image)
    points, _ = bench.measure(
        runtime, prompt, () if ratio == 0 else (ratio,), batch=batch, runs=rounds, warmup=1, new_tokens=steps + 1
    )
    measured = points[-1]
    total, remaining = TEXT + image, TEXT + pruning.kept_tokens((image,))
    decode = cost.decode_work(manifest.model, manifest.dtype, manifest.k, total, remaining, batch)
    return {
        "image_tokens": image,
        "ratio": ratio,
        "batch": batch,
        "k": manifest.k,
        "layers": manifest.model.layers,
        "prefill_ms": 1e3 * statistics.median(measured.sums(("prefix", "rank+select", "suffix"))),
        "step_ms": 1e3 * statistics.median(measured.steps),
        "flops": cost.prefill_flops(manifest.model, manifest.k, total, remaining),
        "step_bytes": sum(part.bytes for part in decode),
    }


def sweep(
    cache: Path, name: str, cases: list[tuple[int, int, int, float, int]], rounds: int, steps: int
) -> list[dict[str, Any]]:
    """Points of (layers, K, image tokens, R, batch); a runtime is loaded once per run of equal (layers, K)."""
    found, loaded, runtime = [], None, None
    for layers, k, image, ratio, batch in cases:
        if loaded != (layers, k):
            runtime = None
            gc.collect()
            loaded, runtime = (layers, k), Runtime.load(bundle_of(cache, layers, k))
        assert runtime is not None
        found.append(point(runtime, image, ratio, batch, rounds, steps))
        print(f"{name}: {found[-1]}", flush=True)
    return found


def cases(tokens: list[int]) -> dict[str, list[tuple[int, int, int, float, int]]]:
    middle = tokens[len(tokens) // 2]
    return {
        "N": [(LAYERS, K, image, 0.0, 1) for image in tokens],
        "N at R=50%": [(LAYERS, K, image, 0.5, 1) for image in tokens],
        "R": [(LAYERS, K, middle, ratio, 1) for ratio in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)],
        "batch": [(LAYERS, K, tokens[0], 0.5, batch) for batch in (1, 2, 4, 8)],
        "K at R=75%": [(LAYERS, k, middle, 0.75, 1) for k in (0, 1, 2, 3)],
        "layers": [(layers, 1, tokens[0], 0.5, 1) for layers in (2, 4, 8)],
    }


def plot(sweeps: dict[str, list[dict[str, Any]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    axis_of = {"N": "image_tokens", "N at R=50%": "image_tokens", "R": "ratio", "K at R=75%": "k"}
    figure, axes = pyplot.subplots(2, 3, figsize=(13, 7), layout="constrained")
    for axis, (name, points) in zip(axes.flat, sweeps.items(), strict=True):
        places = [p[axis_of.get(name, name)] for p in points]
        measured, formula = ("step_ms", "step_bytes") if name == "batch" else ("prefill_ms", "flops")
        for key, style in ((measured, "o-"), (formula, "x--")):
            axis.plot(places, [p[key] / points[0][key] for p in points], style, label=key)
        what = "decode step" if name == "batch" else "prefill"
        axis.set(xlabel=name, ylabel="of the first point", title=f"{what} against {name}")
        if name.startswith("N"):
            axis.set(xscale="log", yscale="log")
        axis.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def show(sweeps: dict[str, list[dict[str, Any]]]) -> None:
    for name, points in sweeps.items():
        columns = f"{'prefill ms':>10}{'of first':>9}{'formula':>9}{'step ms':>10}{'of first':>9}{'bytes':>9}"
        print(f"\n{name:28}{columns}")
        for p in points:
            where = f"N={p['image_tokens']} R={p['ratio']:.0%} K={p['k']} L={p['layers']} B={p['batch']}"
            shares = [p[key] / points[0][key] for key in ("prefill_ms", "flops", "step_ms", "step_bytes")]
            print(
                f"{where:28}{p['prefill_ms']:10.1f}{shares[0]:9.3f}{shares[1]:9.3f}"
                f"{p['step_ms']:10.2f}{shares[2]:9.3f}{shares[3]:9.3f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cache", type=Path, default=HERE.parent / "build" / "benchmarks", help="folder for models")
    parser.add_argument("--tokens", default="256,512,1024,2048,4096,8192", help="values of N")
    parser.add_argument("--only", help="one sweep: N, R, batch, layers, ...; all by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="decode steps per run")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    wanted = cases([int(item) for item in args.tokens.split(",")])
    if args.only is not None and args.only not in wanted:
        parser.error(f"expected --only as one of {', '.join(wanted)}, found {args.only!r}")
    args.cache.mkdir(parents=True, exist_ok=True)
    machine = bench.machine(None)
    chosen = {name: found for name, found in wanted.items() if args.only in (None, name)}
    sweeps = {name: sweep(args.cache, name, found, args.rounds, args.steps) for name, found in chosen.items()}
    show(sweeps)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"machine": machine, "sweeps": sweeps}, indent=1) + "\n", encoding="utf-8")
    if args.plot and len(sweeps) == len(wanted):
        plot(sweeps, args.plot)


if __name__ == "__main__":
    main()
