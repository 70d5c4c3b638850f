"""fastv-trt build"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fastv_trt.bundle import Bundle
from fastv_trt.cli.common import BundlePath, JsonFlag, console, mebibytes, names, print_json, steps
from fastv_trt.cli.verify import conclude, self_test

if TYPE_CHECKING:
    from fastv_trt.limits import BuildLimits

Backend = Annotated[
    str, typer.Option(help="tensorrt-rtx compiles without a GPU; tensorrt for the GPU of this machine.")
]
Compute = Annotated[
    str | None,
    typer.Option(
        help="Compute capabilities, separated by commas; by default 8.6,8.9,12.0 for tensorrt-rtx, and this machine's "
        "GPU for tensorrt.",
        show_default=False,
    ),
]
MaxPrompt = Annotated[
    int | None,
    typer.Option(
        help="Longest prompt in tokens, image tokens included; by default 4096, or what the context allows.",
        show_default=False,
    ),
]
MaxImages = Annotated[int, typer.Option(help="Most images of one request.")]
MaxBatch = Annotated[int, typer.Option(help="Most requests that are decoded together.")]
Kept = Annotated[
    str | None,
    typer.Option(
        help="Tokens of a prompt that live on after layer K, min:opt:max; by default 1 to the whole prompt.",
        show_default=False,
    ),
]
Capacity = Annotated[
    int | None,
    typer.Option(
        help="Cache slots per request, a multiple of 64; by default the prompt and 256 new tokens.", show_default=False
    ),
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
        str | None, typer.Option(help="Folder under engines/; by default like rtx-sm86-sm89.", show_default=False)
    ] = None,
    no_self_test: Annotated[
        bool, typer.Option("--no-self-test", help="Skip comparing the engines with ONNX Runtime where a GPU is there.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Compile a bundle's graphs into engines: one plan per graph, and engine.json."""
    from fastv_trt import engines

    opened = Bundle.open(bundle)
    limits = limits_of(opened, max_prompt, max_images, max_batch, kept, capacity)
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
    untested = "it was switched off" if no_self_test else _why_not(manifest.compute_capabilities)
    report = None if untested else self_test(opened, target.name)
    if json:
        tested = None if report is None else report.record().model_dump()
        print_json({"target": str(target.path), "self_test": tested, **manifest.model_dump(mode="json")})
    else:
        size = sum(engine.plan.bytes for engine in manifest.engines.values())
        typer.echo(
            f"{target.path}: {len(manifest.engines)} plans, {mebibytes(size)}, {manifest.backend} "
            f"{manifest.library_version} for {', '.join(manifest.compute_capabilities)}; prompts to "
            f"{manifest.limits.max_prompt} tokens, batch to {manifest.limits.max_batch}, caches of "
            f"{manifest.limits.prefix_capacity} and {manifest.limits.suffix_capacity} slots"
        )
    if report is None:
        console.print(f"note: no self-test: {untested}")
    else:
        conclude(report, quiet=json)


def limits_of(
    bundle: Bundle,
    max_prompt: int | None,
    max_images: int,
    max_batch: int,
    kept: str | None,
    capacity: int | None,
) -> BuildLimits:
    """Limits from the options that build and check share."""
    from fastv_trt.limits import BuildLimits, Range

    return BuildLimits.of(
        bundle.manifest.model,
        max_prompt=max_prompt,
        max_images=max_images,
        max_batch=max_batch,
        kept=None if kept is None else Range.parse(kept, "--kept"),
        capacity=capacity,
    )


def _why_not(compute: tuple[str, ...]) -> str | None:
    """Why engines for `compute` cannot be tested here, or None."""
    from fastv_trt import nvidia

    gpus = nvidia.gpus()
    if not gpus.devices:
        return f"no NVIDIA GPU ({gpus.reason})"
    if any(gpu.compute in compute for gpu in gpus.devices):
        return None
    return f"compiled for {', '.join(compute)}, and here is {', '.join(gpu.compute for gpu in gpus.devices)}"
