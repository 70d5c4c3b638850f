"""fastv-trt bench"""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fastv_trt.cli.common import (
    BundlePath,
    Device,
    Engine,
    Images,
    Threads,
    console,
    mebibytes,
    numbers,
    output,
    steps,
)
from fastv_trt.cli.lean import hide_torch
from fastv_trt.errors import InputError


def bench(
    bundle: BundlePath,
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of the prompt that are not image.")] = 64,
    image: Images = None,
    image_tokens: Annotated[
        int | None,
        typer.Option(
            help="Image tokens without a picture, vision left out; by default one noise picture.", show_default=False
        ),
    ] = None,
    ratios: Annotated[str, typer.Option(help="Values of R; 0 is always measured.")] = "0,0.5,0.75,0.9",
    ranking: Annotated[str | None, typer.Option(help="By default the bundle's first.", show_default=False)] = None,
    new_tokens: Annotated[int, typer.Option(help="Tokens generated per run.")] = 32,
    batch: Annotated[str, typer.Option(help="Rows decoded together: 1,4.")] = "1",
    warmup: Annotated[int, typer.Option(help="Rounds that do not count.")] = 3,
    runs: Annotated[int, typer.Option(help="Rounds that count; each runs every R once.")] = 20,
    device: Device = "cpu",
    engine: Engine = None,
    threads: Threads = None,
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file; - is stdout.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw bars and the curve over R to this PNG.")] = None,
) -> None:
    """Measure TTFT by part, decode time and memory against R, on this machine, beside what the cost model allows."""
    wanted = numbers(ratios, "--ratios")
    rows_of = _batches(batch)
    for path in (json, plot):
        if path is not None and str(path) != "-" and not path.absolute().parent.is_dir():
            raise InputError(f"expected a folder to write {path} into, found none; make it first")
    if image and image_tokens is not None:
        raise InputError("expected --image or --image-tokens, found both")

    from fastv_trt import bench as measuring
    from fastv_trt.bench.machine import peak_memory
    from fastv_trt.bundle import Bundle
    from fastv_trt.pruning import Pruning
    from fastv_trt.runtime import Runtime

    for ratio in wanted:
        Pruning(ratio=ratio)  # refuses what is not in 0..1, before anything is loaded
    opened = Bundle.open(bundle)
    hide_torch(opened)
    runtime = Runtime.load(opened, device=device, engine=engine, threads=threads)
    manifest = runtime.bundle.manifest
    prompt = _prompt(runtime, list(image or []), prompt_tokens, image_tokens)
    name = ranking or (manifest.rankings[0] if manifest.rankings else "random")
    table: list[dict[str, Any]] = []
    noises = []
    counts: dict[str, Any] = {"runs": runs, "warmup": warmup, "new_tokens": new_tokens, "ranking": name}
    for rows in rows_of:
        measuring.check(runtime, prompt, wanted, batch=rows, **counts)
    for rows in rows_of:
        with steps(f"batch {rows}") as show:
            points, noise = measuring.measure(
                runtime, prompt, wanted, batch=rows, on_run=lambda done, total: show("", done, total), **counts
            )
        table += measuring.as_rows(runtime.bundle, points, prompt.tokens, prompt.image_tokens)
        noises.append(noise)
    content = {
        "bundle": manifest.model.model_dump() | {"k": manifest.k, "dtype": manifest.dtype},
        "device": engine or device,
        "machine": measuring.machine(threads),
        "prompt_tokens": prompt.tokens,
        "image_tokens": prompt.image_tokens,
        "new_tokens": new_tokens,
        "ranking": name,
        "runs": runs,
        "rows": table,
        "peak_memory_bytes": peak_memory(),
        "weight_bytes": runtime.bundle.weight_bytes,
        "noise": [{"others": n.others, "spread": n.spread, "noisy": n.noisy} for n in noises],
    }
    if plot is not None:
        from fastv_trt.bench.report import plot as draw

        draw(table, plot, f"{manifest.model.architecture}, K={manifest.k}, {manifest.dtype}, {engine or device}")
    if json is not None:
        text = json_.dumps(content, indent=2) + "\n"
        if str(json) == "-":
            typer.echo(text, nl=False)
        else:
            json.write_text(text, encoding="utf-8")
    if json is None or str(json) != "-":
        _print(content)
    for noise in noises:
        console.print(str(noise), style="bold red" if noise.noisy else "dim", soft_wrap=True)


def _batches(text: str) -> tuple[int, ...]:
    found = numbers(text, "--batch")
    if not all(value >= 1 and value == int(value) for value in found):
        raise InputError(f"expected --batch as whole numbers of 1 or more, found {text!r}")
    return tuple(int(value) for value in found)


def _prompt(runtime: Any, images: list[Path], text_tokens: int, image_tokens: int | None) -> Any:
    from fastv_trt import bench as measuring

    if text_tokens < 1 or (image_tokens or 0) < 0:
        raise InputError(
            f"expected 1 or more prompt tokens and 0 or more image tokens, found {text_tokens} and {image_tokens}"
        )
    if images or image_tokens is None:
        # Through the processor, picture and all, so that what it takes is measured too.
        import numpy as np

        pictures: list[Any] = images or [np.random.default_rng(0).integers(0, 256, (336, 336, 3), dtype=np.uint8)]
        probe = runtime.request("?", pictures)
        missing = text_tokens - (len(probe.input_ids) - sum(probe.image_sizes))
        question = ("what is in this picture " * (1 + max(0, missing)))[: max(0, missing)] + "?"
        request = runtime.request(question, pictures)
        return measuring.Prompt(
            lambda: runtime.request(question, pictures), len(request.input_ids), sum(request.image_sizes)
        )
    request = measuring.image_request(runtime.bundle, text_tokens, image_tokens)
    return measuring.Prompt(lambda: request, len(request.input_ids), sum(request.image_sizes))


def _print(content: dict[str, Any]) -> None:
    out, machine = output(), content["machine"]
    where = ", ".join(gpu["name"] for gpu in machine["gpus"]) if content["device"] != "cpu" else machine["processor"]
    out.print(
        f"{content['prompt_tokens']} prompt tokens, {content['image_tokens']} of them image; "
        f"K={content['bundle']['k']}, {content['bundle']['dtype']}, ranking {content['ranking']}; "
        f"{content['device']} ({where}, {machine['threads']} threads); {content['runs']} runs"
    )
    columns = ("R", "batch", "kept", "preprocess", "vision", "prefix", "rank+select", "suffix")
    times = Table(
        *columns, "TTFT", "p95", "p99", "min", "prefill of R=0", "ideal", title="milliseconds, medians", box=None
    )
    for row in content["rows"]:
        whole = row["ttft_ms"]
        times.add_row(
            f"{row['ratio']:.0%}",
            str(row["batch"]),
            str(row["kept_tokens"]),
            *(f"{row['parts_ms'][name]['median']:.2f}" for name in columns[3:]),
            *(f"{whole[name]:.1f}" for name in ("median", "p95", "p99", "min")),
            f"{row['decoder_ratio']:.3f}",
            f"{row['ideal_ratio']:.3f}",
        )
    out.print(times)
    decode = Table("R", "batch", "TPOT", "p95", "p99", "min", "tokens/s", "KV cache", title="decode", box=None)
    for row in content["rows"]:
        step = row["tpot_ms"]
        if step is not None:
            decode.add_row(
                f"{row['ratio']:.0%}",
                str(row["batch"]),
                *(f"{step[name]:.2f}" for name in ("median", "p95", "p99", "min")),
                f"{row['tokens_per_second']:.1f}",
                mebibytes(row["kv_bytes"]),
            )
    out.print(decode)
    out.print(
        f"peak memory of this process {mebibytes(content['peak_memory_bytes'])}; "
        f"weights {mebibytes(content['weight_bytes'])}"
    )
