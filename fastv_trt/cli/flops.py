"""fastv-trt flops"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fastv_trt import cost, paper
from fastv_trt.bundle import Bundle, ModelRecord
from fastv_trt.cli.common import JsonFlag, mebibytes, names, numbers, output, print_json
from fastv_trt.errors import InputError
from fastv_trt.gpus import GPUS, GpuSheet, named
from fastv_trt.pruning import Pruning

PRESETS = {
    "exact": "the model's own shapes, a multiply-add as 2, attention over the full square, lm_head for one token",
    "paper": "4nd²+2n²d+2ndm, a multiply-add as 1, averaged over layers: the paper's column",
    "visual-only": "image tokens alone, 4nd²+2n²d+3ndm summed over layers, a multiply-add as 1: later papers' figure",
}


def flops(
    bundle: Annotated[
        Path | None, typer.Argument(help="Bundle folder; without it, --model.", show_default=False)
    ] = None,
    model: Annotated[str, typer.Option(help=f"Sizes without a bundle: {', '.join(paper.MODELS)}.")] = "llava-1.5-7b",
    preset: Annotated[str, typer.Option(help=f"How FLOPs are counted: {', '.join(PRESETS)}.")] = "exact",
    k: Annotated[
        int | None, typer.Option(help="Cut before this layer; the bundle's, or 2.", show_default=False)
    ] = None,
    ratios: Annotated[str, typer.Option(help="Values of R.")] = "0,0.5,0.75,0.9",
    text_tokens: Annotated[int, typer.Option(help="Tokens of the prompt that are not image.")] = paper.TEXT_TOKENS,
    image_tokens: Annotated[int, typer.Option(help="Image tokens of the prompt.")] = paper.IMAGE_TOKENS,
    dtype: Annotated[
        str | None, typer.Option(help="fp32, fp16 or bf16; the bundle's, or fp16.", show_default=False)
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="GPUs of the estimate, by name; all known by default.", show_default=False)
    ] = None,
    json: JsonFlag = False,
) -> None:
    """What a cut saves, by formula: FLOPs, KV memory, and a roofline of TTFT and TPOT on GPUs. Nothing is run.

    With --preset paper and neither bundle nor --k: the paper's column beside the formula, with the differences.
    """
    if preset not in PRESETS:
        raise InputError(f"expected a preset of {', '.join(PRESETS)}, found {preset!r}")
    if preset == "paper" and bundle is None and k is None:
        content: dict[str, Any] = {"preset": preset, "rows": _paper()}
        if json:
            print_json(content)
        else:
            _print_paper(content["rows"])
        return
    record, cut, stored = _model(bundle, model)
    cut = cut if k is None else k
    if not 0 <= cut < record.layers:
        raise InputError(f"expected K in 0..{record.layers - 1}, found {cut}")
    stored = dtype or stored
    if stored not in cost.ITEM_BYTES:
        raise InputError(f"expected dtype {', '.join(cost.ITEM_BYTES)}, found {stored!r}")
    if text_tokens < 1 or image_tokens < 0:
        raise InputError(
            f"expected 1 or more text tokens and 0 or more of image, found {text_tokens} and {image_tokens}"
        )
    if preset == "visual-only" and image_tokens == 0:
        raise InputError("expected image tokens for the preset visual-only, found 0; it counts nothing else")
    chosen = GPUS if gpu is None else tuple(named(name) for name in names(gpu) or ())
    policies = [Pruning(ratio=ratio) for ratio in numbers(ratios, "--ratios")]
    content = {
        "model": model if bundle is None else str(bundle),
        "k": cut,
        "dtype": stored,
        "preset": preset,
        "text_tokens": text_tokens,
        "image_tokens": image_tokens,
        "rows": [
            _row(record, preset, stored, cut, text_tokens, image_tokens, policy, chosen)
            for policy in (Pruning(ratio=0.0), *policies)
        ],
    }
    base = content["rows"].pop(0)
    for row in content["rows"]:
        row["of_unpruned"] = row["flops"] / base["flops"]
    if json:
        print_json(content)
    else:
        _print(content, chosen)


def _model(bundle: Path | None, name: str) -> tuple[ModelRecord, int, str]:
    if bundle is not None:
        manifest = Bundle.open(bundle, check_hashes=False).manifest  # nothing is loaded from it
        return manifest.model, manifest.k, manifest.dtype
    if name not in paper.MODELS:
        raise InputError(f"expected a model of {', '.join(paper.MODELS)}, found {name!r}; give a bundle for another")
    return paper.MODELS[name], 2, "fp16"


def _row(
    model: ModelRecord,
    preset: str,
    dtype: str,
    k: int,
    text: int,
    image: int,
    pruning: Pruning,
    gpus: tuple[GpuSheet, ...],
) -> dict[str, Any]:
    kept = pruning.kept_tokens((image,))
    total, remaining = text + image, text + kept
    if preset == "paper":
        count = cost.paper_flops(model.layers, model.hidden_size, model.ffn_size, k, total, remaining)
    elif preset == "visual-only":
        count = cost.visual_flops(model, k, image, kept)
    else:
        count = cost.prefill_flops(model, k, total, remaining)
    prefill = cost.prefill_work(model, dtype, k, total, remaining)
    decode = cost.decode_work(model, dtype, k, total, remaining)
    weights = (model.layers * cost.layer_weights(model) + 2 * model.hidden_size * model.vocab_size) * cost.ITEM_BYTES[
        dtype
    ]
    cache = cost.kv_bytes(model, dtype, k, total, remaining)
    return {
        "ratio": pruning.ratio,
        "kept_tokens": kept,
        "flops": count,
        "kv_bytes": cache,
        "prefill_bytes_moved": sum(part.bytes for part in prefill),
        "decode_bytes_moved": sum(part.bytes for part in decode),
        "roofline": {
            gpu.name: {
                "ttft_seconds": sum(part.seconds(gpu.flops(dtype), gpu.bandwidth) for part in prefill),
                "tpot_seconds": sum(part.seconds(gpu.flops(dtype), gpu.bandwidth) for part in decode),
                "fits": weights + cache < gpu.memory_bytes,
            }
            for gpu in gpus
        },
    }


def _paper() -> list[dict[str, Any]]:
    rows = []
    for row in paper.TABLE:
        model = paper.MODELS[row.model]
        tokens = paper.TEXT_TOKENS + paper.IMAGE_TOKENS
        remaining = paper.TEXT_TOKENS + paper.IMAGE_TOKENS * (1 - row.ratio / 100)
        found = cost.paper_flops(model.layers, model.hidden_size, model.ffn_size, row.k, tokens, remaining) / 1e9
        rows.append(
            {
                "model": row.model,
                "k": row.k,
                "ratio": row.ratio / 100,
                "paper_gflops": row.gflops,
                "gflops": found,
                "difference": found - row.gflops,
            }
        )
    return rows


def _print_paper(rows: list[dict[str, Any]]) -> None:
    table = Table(
        "model",
        "K",
        "R",
        "paper, GFLOPs",
        "formula",
        "difference",
        title=f"per-layer average, n = {paper.TEXT_TOKENS} + {paper.IMAGE_TOKENS}, n̂ = {paper.TEXT_TOKENS} + "
        f"{paper.IMAGE_TOKENS}·(1-R)",
    )
    for row in rows:
        baseline = row["k"] == 0 and row["ratio"] == 0
        table.add_row(
            row["model"],
            "-" if baseline else str(row["k"]),
            "-" if baseline else f"{row['ratio']:.0%}",
            f"{row['paper_gflops']:.1f}",
            f"{row['gflops']:.2f}",
            f"{row['difference']:+.2f}",
        )
    out = output()
    out.print(table)
    out.print(
        "No formula that we know reproduces the 7B rows with K = 0 exactly. Left out: Qwen-VL-Chat's rows, whose "
        "prompt length the paper does not give."
    )


def _print(content: dict[str, Any], gpus: tuple[GpuSheet, ...]) -> None:
    out, rows = output(), content["rows"]
    out.print(
        f"[bold]{content['model']}[/bold]  K={content['k']}, {content['dtype']}; prompt of {content['text_tokens']} "
        f"text and {content['image_tokens']} image tokens. The decoder alone: a vision tower comes on top"
    )
    table = Table("R", "kept", "GFLOPs", "of R=0", "KV cache", "moved by prefill", "moved per token")
    for row in rows:
        table.add_row(
            f"{row['ratio']:.0%}",
            str(row["kept_tokens"]),
            f"{row['flops'] / 1e9:.1f}",
            f"{row['of_unpruned']:.3f}",
            mebibytes(row["kv_bytes"]),
            mebibytes(row["prefill_bytes_moved"]),
            mebibytes(row["decode_bytes_moved"]),
        )
    out.print(table)
    out.print(f"{content['preset']}: {PRESETS[content['preset']]}")
    if not gpus:
        return
    bound = Table(
        "GPU",
        *(f"TTFT {row['ratio']:.0%}" for row in rows),
        *(f"TPOT {row['ratio']:.0%}" for row in rows),
        title="milliseconds at the data sheet's peak: a bound that no run beats, not a forecast",
    )
    for gpu in gpus:
        found = [row["roofline"][gpu.name] for row in rows]
        if not all(item["fits"] for item in found):
            bound.add_row(gpu.name, f"does not fit into {gpu.memory_bytes / 1e9:.0f} GB")
            continue
        bound.add_row(
            gpu.name,
            *(f"{1e3 * item['ttft_seconds']:.1f}" for item in found),
            *(f"{1e3 * item['tpot_seconds']:.2f}" for item in found),
        )
    out.print(bound)
