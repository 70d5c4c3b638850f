"""fastv-trt export"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastv_trt.cli.common import AllowPickle, CheckpointPath, JsonFlag, console, mebibytes, names, print_json, steps


def export(
    checkpoint: CheckpointPath,
    output: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder to make; it must not exist.")],
    k: Annotated[int, typer.Option("--k", help="Cut before this decoder layer: 0 to L-1.")] = 2,
    dtype: Annotated[str, typer.Option(help="fp32, fp16 or bf16.")] = "fp32",
    rankings: Annotated[
        str | None,
        typer.Option(
            help="Attention rankings to export, separated by commas; by default last-query,received.",
            show_default=False,
        ),
    ] = None,
    allow_pickle: AllowPickle = False,
    json: JsonFlag = False,
) -> None:
    """Cut a checkpoint's decoder at layer K and write a bundle of ONNX graphs."""
    from fastv_trt import export as room

    with steps("export") as on_step:
        exported = room.export(
            checkpoint,
            output,
            k=k,
            dtype=dtype,
            rankings=names(rankings),
            allow_pickle=allow_pickle,
            on_step=on_step,
        )
    manifest = exported.bundle.manifest
    for note in exported.notes:
        console.print(f"note: {note}")
    if json:
        print_json({"bundle": str(output), "notes": exported.notes, **manifest.model_dump(mode="json")})
        return
    model = manifest.model
    typer.echo(
        f"{output}: {model.architecture}, {model.layers} layers cut before layer {manifest.k}, {manifest.dtype}, "
        f"{mebibytes(exported.bundle.weight_bytes)}, rankings {', '.join(manifest.rankings) or 'none from attention'}"
    )
