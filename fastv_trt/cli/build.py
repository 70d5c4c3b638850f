"""fastv-trt build"""

from __future__ import annotations

from typing import Annotated

import typer

from fastv_trt.bundle import Bundle
from fastv_trt.cli.common import BundlePath, JsonFlag, mebibytes, names, print_json, steps

Backend = Annotated[
    str, typer.Option(help="tensorrt-rtx compiles without a GPU; tensorrt for the GPU of this machine.")
]
Compute = Annotated[
    str | None,
    typer.Option(help="Compute capabilities, separated by commas. [default: 8.6,8.9,12.0]", show_default=False),
]
MaxPrompt = Annotated[
    int | None,
    typer.Option(help="Longest prompt in tokens, image tokens included. [default: 4096, or what the context allows]"),
]
MaxImages = Annotated[int, typer.Option(help="Most images of one request.")]
MaxBatch = Annotated[int, typer.Option(help="Most requests that are decoded together.")]
Kept = Annotated[
    str | None,
    typer.Option(help="Tokens of a prompt that live on after layer K, min:opt:max. [default: 1 to the whole prompt]"),
]
Capacity = Annotated[
    int | None,
    typer.Option(help="Cache slots per request, a multiple of 64. [default: the prompt and 256 new tokens]"),
]
Decomposable = Annotated[
    bool,
    typer.Option("--decomposable", help="Let attention without a fused kernel (fp32) run as several kernels."),
]


def build(
    bundle: BundlePath,
    backend: Backend = "tensorrt-rtx",
    compute: Compute = None,
    max_prompt: MaxPrompt = None,
    max_images: MaxImages = 4,
    max_batch: MaxBatch = 8,
    kept: Kept = None,
    capacity: Capacity = None,
    decomposable: Decomposable = False,
    name: Annotated[
        str | None, typer.Option(help="Folder under engines/. [default: like rtx-sm86-sm89]", show_default=False)
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Compile a bundle's graphs into engines: one plan per graph, and engine.json."""
    from fastv_trt import engines

    opened = Bundle.open(bundle)
    limits = engines.BuildLimits.of(
        opened.manifest.model,
        max_prompt=max_prompt,
        max_images=max_images,
        max_batch=max_batch,
        kept=None if kept is None else engines.Range.parse(kept, "--kept"),
        capacity=capacity,
    )
    with steps("build") as on_step:
        target = engines.build(
            opened,
            backend,
            limits=limits,
            compute=names(compute),
            name=name,
            decomposable=decomposable,
            on_step=on_step,
        )
    manifest = target.manifest
    if json:
        print_json({"target": str(target.path), **manifest.model_dump(mode="json")})
        return
    size = sum(engine.plan.bytes for engine in manifest.engines.values())
    typer.echo(
        f"{target.path}: {len(manifest.engines)} plans, {mebibytes(size)}, {manifest.backend} "
        f"{manifest.library_version} for {', '.join(manifest.compute_capabilities)}; prompts to "
        f"{manifest.limits.max_prompt} tokens, batch to {manifest.limits.max_batch}, caches of "
        f"{manifest.limits.prefix_capacity} and {manifest.limits.suffix_capacity} slots"
    )
