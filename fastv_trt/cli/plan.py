"""fastv-trt plan"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fastv_trt.cli.build import Capacity, Kept, MaxBatch, MaxImages, MaxPrompt
from fastv_trt.cli.common import JsonFlag, mebibytes, output, print_json
from fastv_trt.errors import InputError


def plan(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A config.json, or a folder with one. Weights are not needed.")
    ],
    k: Annotated[int, typer.Option("--k", help="Cut before this decoder layer: 0 to L-1.")] = 2,
    dtype: Annotated[str, typer.Option(help="fp32, fp16 or bf16.")] = "fp16",
    max_prompt: MaxPrompt = None,
    max_images: MaxImages = 4,
    max_batch: MaxBatch = 8,
    kept: Kept = None,
    capacity: Capacity = None,
    image_tokens: Annotated[
        int | None,
        typer.Option(help="Image tokens of the prompt whose caches are shown. [default: one picture's, else 576]"),
    ] = None,
    text_tokens: Annotated[int, typer.Option(help="Its text tokens; 36 are the paper's.")] = 36,
    json: JsonFlag = False,
) -> None:
    """Say what a model would need, from its config.json: graph sizes, caches, engine memory, which GPUs fit."""
    content = describe(
        config,
        k=k,
        dtype=dtype,
        limits={
            "max_prompt": max_prompt,
            "max_images": max_images,
            "max_batch": max_batch,
            "kept": kept,
            "capacity": capacity,
        },
        image_tokens=image_tokens,
        text_tokens=text_tokens,
    )
    if json:
        print_json(content)
    else:
        _print(content)


def describe(
    config: Path, *, k: int, dtype: str, limits: dict[str, Any], image_tokens: int | None, text_tokens: int
) -> dict[str, Any]:
    """The plan as a JSON document; sizes in bytes."""
    from fastv_trt import plan as formulas
    from fastv_trt.cost import ITEM_BYTES
    from fastv_trt.export import sizes
    from fastv_trt.limits import BuildLimits, Range, profiles

    if dtype not in ITEM_BYTES:
        raise InputError(f"expected dtype {', '.join(ITEM_BYTES)}, found {dtype!r}")
    if text_tokens < 1 or (image_tokens is not None and image_tokens < 0):
        raise InputError(f"expected 1 or more text and 0 or more image tokens, found {text_tokens} and {image_tokens}")
    measured = sizes.measure(config, k)
    model, graphs = measured.model, measured.graph_bytes(dtype)
    kept = limits["kept"]
    chosen = BuildLimits.of(model, **limits | {"kept": Range.parse(kept, "kept") if kept else None})
    images = measured.image_tokens if image_tokens is None else image_tokens
    patches = measured.vision.patches_at_once(chosen.max_images, chosen.max_prompt)
    memory = formulas.memory(model, dtype, k, graphs, chosen, measured.vision.width, patches)
    return {
        "config": str(config),
        "model": model.model_dump(),
        "k": k,
        "dtype": dtype,
        "refusal": measured.refusal,
        "graphs": graphs,
        "prompt": {"text_tokens": text_tokens, "image_tokens": images},
        "kv_bytes": [asdict(cache) for cache in formulas.caches(model, dtype, k, text_tokens, images)],
        "limits": chosen.record().model_dump(mode="json"),
        "profiles": {
            graph: {
                profile.name: {axis: str(sizes) for axis, sizes in profile.axes.items()}
                for profile in profiles(graph, chosen)
            }
            for graph in ("prefix", "suffix")
        },
        "engine_bytes": {
            "plans": memory.plans,
            "caches": memory.caches,
            "caches_per_row": memory.row,
            "activations": memory.activations,
            "context": formulas.CONTEXT_BYTES,
            "total": memory.total,
        },
        "build_host_bytes": formulas.build_bytes(graphs),
        "gpus": [
            {
                "name": fit.gpu.name,
                "memory": fit.gpu.memory_bytes,
                "compute": fit.gpu.compute,
                "backend": fit.gpu.backend,
                "fits": fit.fits,
                "left": fit.left,
                "rows": fit.rows,
            }
            for fit in formulas.fits(memory)
        ],
    }


def _print(content: dict[str, Any]) -> None:
    out = output()
    model, graphs, engine, limits = content["model"], content["graphs"], content["engine_bytes"], content["limits"]
    out.print(f"[bold]{model['architecture']}[/bold] ({model['decoder']} decoder), {model['parameters']:,} parameters")
    if content["refusal"]:
        out.print(f"export would refuse it: {content['refusal']}", markup=False)
    out.print(
        f"{model['layers']} layers, cut before layer {content['k']}, {content['dtype']}: "
        + ", ".join(f"{name} {mebibytes(size)}" for name, size in graphs.items())
        + f"; together {mebibytes(sum(graphs.values()))}"
    )
    prompt = content["prompt"]
    table = Table("R", "kept image tokens", "KV cache", "of R = 0")
    full = content["kv_bytes"][0]["bytes"]
    for cache in content["kv_bytes"]:
        share = f"x {cache['bytes'] / full:.2f}"
        table.add_row(f"{cache['ratio']:.0%}", str(cache["kept"]), mebibytes(cache["bytes"]), share)
    out.print(f"a prompt of {prompt['text_tokens']} text and {prompt['image_tokens']} image tokens:")
    out.print(table)
    out.print(
        f"engines for prompts of {limits['max_prompt']} tokens, {limits['max_images']} images, {limits['max_batch']} "
        f"rows of {limits['prefix_capacity']} + {limits['suffix_capacity']} slots:"
    )
    for graph, named in content["profiles"].items():
        for name, axes in named.items():
            out.print(
                f"  {graph} {name}: " + ", ".join(f"{axis} {sizes}" for axis, sizes in axes.items()), markup=False
            )
    out.print(
        f"  GPU memory {mebibytes(engine['total'])} = plans {mebibytes(engine['plans'])} + caches "
        f"{mebibytes(engine['caches'])} ({mebibytes(engine['caches_per_row'])} a row) + activations about "
        f"{mebibytes(engine['activations'])} + context {mebibytes(engine['context'])}"
    )
    out.print(f"  host memory to build them: {mebibytes(content['build_host_bytes'])}")
    table = Table("GPU", "memory", "compute", "library", "fits", "left", "rows that fit")
    for gpu in content["gpus"]:
        table.add_row(
            gpu["name"],
            f"{gpu['memory'] // 10**9} GB",
            gpu["compute"],
            gpu["backend"],
            "yes" if gpu["fits"] else "NO",
            mebibytes(gpu["left"]) if gpu["fits"] else "",
            str(gpu["rows"]),
        )
    out.print(table)
