"""fastv-trt inspect"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from fastv_trt import cost
from fastv_trt.bundle import Bundle, OperatingPointRecord
from fastv_trt.cli.common import (
    BundlePath,
    Frames,
    Images,
    JsonFlag,
    Keep,
    Ratio,
    Scope,
    Videos,
    mebibytes,
    output,
    print_json,
    pruning_of,
)
from fastv_trt.cli.doctor import engine_lines
from fastv_trt.cli.lean import hide_torch
from fastv_trt.errors import InputError
from fastv_trt.pruning import FREE_RANKINGS


def inspect(
    bundle: BundlePath,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="Count its tokens, without running.")] = None,
    image: Images = None,
    video: Videos = None,
    frames: Frames = None,
    ratio: Ratio = None,
    keep: Keep = None,
    scope: Scope = "all",
    max_new_tokens: Annotated[int, typer.Option(help="New tokens that the caches have to hold.")] = 128,
    raw: Annotated[bool, typer.Option("--raw", help="Take the prompt as it is, without the chat template.")] = False,
    engines: Annotated[
        bool, typer.Option("--engines", help="Show its engines too, and whether they run here.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Show a bundle's graphs, sizes and costs, and what a prompt would keep. Nothing is run."""
    opened = Bundle.open(bundle)
    hide_torch(opened)
    content = describe(opened)
    if engines:
        from fastv_trt.engines import doctor

        content["engines"] = doctor.engines(opened)
    if prompt is not None:
        pruning = pruning_of(opened.manifest, ratio, keep, None, scope, 0)
        media = (list(image or []), list(video or []), frames)
        content["prompt"] = _prompt(opened, prompt, media, pruning, max_new_tokens, raw)
    elif image or video:
        raise InputError("expected --prompt with --image, found none; a picture is counted as part of a prompt")
    if json:
        print_json(content)
    else:
        _print(opened, content)


def describe(bundle: Bundle) -> dict[str, Any]:
    """A bundle as a JSON document; sizes in bytes."""
    manifest = bundle.manifest
    sizes = {file.path: file.bytes for file in manifest.files}
    return {
        "bundle": str(bundle.path),
        "created_by": manifest.created_by,
        "schema_version": manifest.schema_version,
        "model": manifest.model.model_dump(),
        "k": manifest.k,
        "dtype": manifest.dtype,
        "rankings": list(manifest.rankings),
        "tokens": manifest.tokens.model_dump(mode="json"),
        "kv_bytes_per_token": {
            "layers_before_k": cost.kv_bytes(manifest.model, manifest.dtype, manifest.k, 1, 0),
            "layers_from_k": cost.kv_bytes(manifest.model, manifest.dtype, manifest.k, 0, 1),
        },
        "graphs": {
            name: {
                **graph.model_dump(mode="json"),
                "bytes": sum(sizes.get(path, 0) for path in (graph.path, f"{graph.path}.data")),
            }
            for name, graph in manifest.graphs.items()
        },
        "operating_point": None if manifest.operating_point is None else manifest.operating_point.model_dump(),
        "quantization": None if manifest.quantization is None else manifest.quantization.model_dump(),
        "verification": None if manifest.verification is None else manifest.verification.model_dump(),
    }


def _prompt(
    bundle: Bundle,
    prompt: str,
    media: tuple[list[Any], list[Any], int | None],
    pruning: Any,
    new_tokens: int,
    raw: bool,
) -> dict[str, Any]:
    from fastv_trt.runtime.processing import Processor

    manifest = bundle.manifest
    processor = Processor.of(bundle)
    images, videos, frames = media
    plain = raw or (processor.family.front and not processor.has_chat_template)
    text = prompt if plain else processor.render([processor.user(prompt, len(images), len(videos))])
    request = processor.request(text, images, videos, frames=frames)
    total, image_tokens = len(request.input_ids), sum(request.image_sizes)
    kept = pruning.kept_tokens(request.groups(pruning.scope))
    remaining = total - image_tokens + kept
    full = cost.kv_bytes(manifest.model, manifest.dtype, manifest.k, total + new_tokens, total + new_tokens)
    pruned = cost.kv_bytes(manifest.model, manifest.dtype, manifest.k, total + new_tokens, remaining + new_tokens)
    flops = cost.prefill_flops(manifest.model, manifest.k, total, remaining)
    return {
        "prompt_tokens": total,
        "text_tokens": total - image_tokens,
        "image_tokens": image_tokens,
        "kept_image_tokens": kept,
        "context": manifest.model.max_positions,
        "kv_bytes_unpruned": full,
        "kv_bytes": pruned,
        "decoder_flops_ratio": flops / cost.prefill_flops(manifest.model, manifest.k, total, total),
    }


def _print(bundle: Bundle, content: dict[str, Any]) -> None:
    out = output()
    manifest, model, per_token = bundle.manifest, bundle.manifest.model, content["kv_bytes_per_token"]
    out.print(f"[bold]{bundle.path}[/bold]  {model.architecture} ({model.family}, {model.decoder} decoder)")
    out.print(
        f"{model.layers} layers, cut before layer {manifest.k}; hidden {model.hidden_size}, heads {model.heads}/"
        f"{model.key_value_heads} x {model.head_size}, ffn {model.ffn_size}, vocabulary {model.vocab_size}, "
        f"context {model.max_positions} tokens, {model.parameters:,} parameters, {manifest.dtype}"
    )
    out.print(f"rankings: {', '.join((*manifest.rankings, *FREE_RANKINGS))}")
    out.print(
        f"KV cache: {mebibytes(per_token['layers_before_k'])} per token in layers before K, "
        f"{mebibytes(per_token['layers_from_k'])} per kept token from K on"
    )
    table = Table("graph", "size", "inputs and outputs", title_justify="left")
    for name, graph in manifest.graphs.items():
        table.add_row(name, mebibytes(content["graphs"][name]["bytes"]), _signature(graph))
    out.print(table)
    checked = manifest.verification
    if checked is None:
        out.print("verified: not yet; run fastv-trt verify")
    else:
        out.print(
            f"verified: {'passed' if checked.passed else 'FAILED'}, {checked.cases} cases on {checked.device}, max "
            f"|Δlogit| {checked.max_abs_logit_difference:.1e}, cosine {checked.min_cosine:.7f} ({checked.tool})"
        )
    made = manifest.quantization
    if made is not None:
        left = f", without {', '.join(made.excluded)}" if made.excluded else ""
        libraries = ", ".join(f"{name} {version}" for name, version in made.libraries.items())
        out.print(
            f"quantized: {made.scheme} for {made.target}, {sum(made.quantized.values())} weights of "
            f"{', '.join(made.quantized)}{left}; ranges from {made.samples} samples ({libraries})"
        )
    out.print(_default(manifest.operating_point), markup=False)
    for line in engine_lines(content):
        out.print(line, markup=False)
    if "prompt" in content:
        counted = content["prompt"]
        out.print(
            f"prompt: {counted['prompt_tokens']} tokens = {counted['text_tokens']} text + {counted['image_tokens']} "
            f"image, of which {counted['kept_image_tokens']} are kept; KV {mebibytes(counted['kv_bytes_unpruned'])} -> "
            f"{mebibytes(counted['kv_bytes'])}; decoder FLOPs x {counted['decoder_flops_ratio']:.3f}"
        )


def _default(point: OperatingPointRecord | None) -> str:
    if point is None:
        return "default: R=50%, not calibrated; run fastv-trt calibrate"
    policy = point.pruning
    amount = f"mass={policy.mass:g}" if policy.mass is not None else f"R={100 * (policy.ratio or 0):g}%"
    return (
        f"default: {policy.ranking} {amount}, calibrated on {point.samples} samples to {point.budget}: {point.measure} "
        f"{point.quality:+.2f} [{point.low:+.2f}, {point.high:+.2f}] at confidence {point.confidence:g}, TTFT x "
        f"{point.ttft_ratio:.3f}, {100 * point.kept_share:.1f}% of image tokens kept ({point.tool}, {point.device})"
    )


def _signature(graph: Any) -> str:
    def side(records: Any) -> str:
        shown = [r for r in records if not r.name.startswith(("past_key_values.", "present."))]
        caches = [r for r in records if r not in shown]
        lines = [f"{r.name} {r.dtype}{list(r.shape)}".replace("'", "") for r in shown]
        if caches:
            lines.append(f"{len(caches)} caches {caches[0].dtype}{list(caches[0].shape)}".replace("'", ""))
        return "\n".join(lines)

    # Rich reads [..] as markup.
    return f"{side(graph.inputs)}\n-> {side(graph.outputs)}".replace("[", "\\[")
