"""fastv-trt quantize"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table as Printed

from fastv_trt.cli.calibrate import Metric, progress
from fastv_trt.cli.common import BundlePath, JsonFlag, Threads, mebibytes, names, numbers, output, print_json


def quantize(
    bundle: BundlePath,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to make; it must not exist.")],
    scheme: Annotated[str, typer.Option(help="int4, int8 or fp8.")],
    samples: Annotated[Path, typer.Option(help="JSONL file or folder, as for calibrate: for ranges and for the gate.")],
    target: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="tensorrt or cpu. int8 needs it; int4 is good on both, fp8 is for tensorrt.",
            show_default=False,
        ),
    ] = None,
    graphs: Annotated[str, typer.Option(help="Of prefix, suffix and vision.")] = "prefix,suffix",
    exclude: Annotated[
        str | None,
        typer.Option(
            help="Weights that stay in floating point: patterns such as lm_head,layers.2.*,*.down_proj. By default "
            "lm_head for int8 and fp8, nothing for int4.",
            show_default=False,
        ),
    ] = None,
    block: Annotated[int, typer.Option(help="Rows of a weight that share a scale, for int4.")] = 32,
    smooth: Annotated[
        float | None,
        typer.Option(
            help="SmoothQuant's alpha: how far the scale of activations moves into weights, 0 to 1. By default 0.5 for "
            "int8 and 0 for fp8.",
            show_default=False,
        ),
    ] = None,
    range_samples: Annotated[int, typer.Option(help="Samples that activation ranges are collected on.")] = 32,
    steps: Annotated[int, typer.Option(help="Decode steps of each that ranges are collected on.")] = 4,
    budget: Annotated[
        str | None,
        typer.Option(
            help="What may be lost against floating point, as for calibrate. By default accuracy >= -1 with answers, "
            "agreement >= 95 without.",
            show_default=False,
        ),
    ] = None,
    use_gate: Annotated[bool, typer.Option("--gate/--no-gate", help="Write only what keeps to the budget.")] = True,
    ratios: Annotated[str, typer.Option(help="Values of R at which the gate compares.")] = "0,0.5",
    metric: Metric = "exact",
    prompt: Annotated[
        str, typer.Option("--prompt", "-p", help="Asked about a folder's pictures.")
    ] = "Describe the image.",
    max_new_tokens: Annotated[int, typer.Option(help="Per answer, in the gate.")] = 32,
    threads: Threads = None,
    json: JsonFlag = False,
) -> None:
    """Make a smaller copy of a bundle: int4, int8 or fp8 weights, ranges from the real chain, gated on your samples."""
    from fastv_trt.bundle import Bundle
    from fastv_trt.calibration import Budget, Samples
    from fastv_trt.calibration.quantize import Request
    from fastv_trt.calibration.quantize import quantize as room
    from fastv_trt.pruning import Pruning
    from fastv_trt.runtime.runtime import default_pruning

    opened = Bundle.open(bundle)
    read = Samples.read(samples, prompt=prompt)
    chosen = Budget.parse(budget or ("accuracy >= -1" if read.answered else "agreement >= 95"))
    values = numbers(ratios, "ratios")
    for value in values:
        Pruning(ratio=value)
    request = Request(
        scheme=scheme,  # type: ignore[arg-type]  # Request.check
        target=target,  # type: ignore[arg-type]
        graphs=names(graphs) or (),
        exclude=names(exclude),
        block=block,
        smooth=smooth,
        policy=default_pruning(opened.manifest),
        steps=steps,
        samples=range_samples,
        budget=chosen if use_gate else None,
        gate_ratios=values,
        metric=metric,
        new_tokens=max_new_tokens,
    )
    with progress() as on_step:
        made = room(opened, out, read, request, threads=threads, on_step=on_step)
    content = {
        "bundle": str(made.bundle.path),
        "quantization": made.bundle.manifest.quantization and made.bundle.manifest.quantization.model_dump(),
        "bytes": {"before": made.bytes_before, "after": made.bytes_after},
        "quantized_graph_bytes": {"before": made.weights_before, "after": made.weights_after},
        "errors": {name: [asdict(error) for error in own] for name, own in made.errors.items()},
        "gate": [asdict(row) for row in made.gate],
    }
    if json:
        print_json(content)
    else:
        _print(made)


def _print(made: Any) -> None:
    out = output()
    errors = Printed("graph", "weight", "error of its result")
    for name, own in made.errors.items():
        for error in own:
            errors.add_row(name, error.label, f"{100 * error.error:.2f}%")
    out.print(errors)
    if made.gate:
        table = Printed("R", "accuracy", "quantized", "same answers", "KL", "against floating point", "")
        for row in made.gate:
            table.add_row(
                f"{100 * (row.policy.ratio or 0):g}%",
                *("" if i is None else f"{i.estimate:.1f}" for i in (row.plain, row.quantized, row.agreement)),
                f"{row.kl:.4f}",
                f"{row.measured.estimate:+.2f} ({row.measured.low:+.2f} to {row.measured.high:+.2f})",
                "in budget" if row.inside else "OUTSIDE",
            )
        out.print(table)
    record = made.bundle.manifest.quantization
    size = f"{mebibytes(made.bytes_before)} -> {mebibytes(made.bytes_after)}"
    typer.echo(
        f"{made.bundle.path}: {record.scheme} for {record.target}, {sum(record.quantized.values())} weights, graphs "
        f"{size} (x {made.bytes_after / made.bytes_before:.3f})"
    )
