"""fastv-trt run"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fastv_trt.cli.common import (
    BundlePath,
    Device,
    Engine,
    Frames,
    Images,
    JsonFlag,
    Keep,
    Mass,
    MaxKeep,
    MinKeep,
    Ranking,
    Ratio,
    Scope,
    Threads,
    Videos,
    console,
    mebibytes,
    print_json,
    pruning_of,
)
from fastv_trt.cli.lean import hide_torch
from fastv_trt.errors import InputError


def run(
    bundle: BundlePath,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="The question. - reads it from stdin.")],
    image: Images = None,
    video: Videos = None,
    frames: Frames = None,
    ratio: Ratio = None,
    keep: Keep = None,
    mass: Mass = None,
    min_keep: MinKeep = 0,
    max_keep: MaxKeep = None,
    ranking: Ranking = None,
    scope: Scope = "all",
    max_new_tokens: Annotated[int, typer.Option(help="At most this many new tokens.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus of the draw, with a temperature.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draw, and of the random ranking.")] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Take the prompt as it is, without the chat template.")] = False,
    require_pruning: Annotated[
        bool, typer.Option("--require-pruning", help="Fail if there is nothing to prune.")
    ] = False,
    save_kept: Annotated[Path | None, typer.Option(help="Draw the kept patches and the scores to this PNG.")] = None,
    dump_inputs: Annotated[
        Path | None,
        typer.Option(help="Write the ids and pixel values to this safetensors file, for other programs, and stop."),
    ] = None,
    device: Device = "cpu",
    engine: Engine = None,
    threads: Threads = None,
    json: JsonFlag = False,
) -> None:
    """Answer a prompt about pictures, pruned after layer K. Text streams to stdout."""
    from fastv_trt.bundle import Bundle
    from fastv_trt.runtime import Limits, Runtime, Sampling

    pictures = list(image or [])
    if save_kept is not None and not pictures:
        raise InputError("expected --image with --save-kept, found none; there is nothing to draw")
    if save_kept is not None and not save_kept.absolute().parent.is_dir():
        raise InputError(f"expected a folder to write {save_kept} into, found none; make it first")
    text = sys.stdin.read().strip() if prompt == "-" else prompt
    opened = Bundle.open(bundle)
    hide_torch(opened)
    if dump_inputs is not None:
        _dump(opened, text, pictures, raw, dump_inputs)
        return
    pruning = pruning_of(opened.manifest, ratio, keep, ranking, scope, seed, require_pruning, mass, min_keep, max_keep)
    limits, sampling = Limits(max_new_tokens), Sampling(temperature, top_p, seed)
    runtime = Runtime.load(opened, device=device, engine=engine, threads=threads)
    request = runtime.request(text, pictures, videos=list(video or []), frames=frames, raw=raw)
    stream = runtime.stream(request, pruning, limits, sampling)
    for piece in stream:
        if not json:
            typer.echo(piece, nl=False)
            sys.stdout.flush()
    answer = stream.answer
    if not json:
        typer.echo("")
    for note in answer.prefill.notes:
        console.print(f"note: {note}")
    if save_kept is not None:
        from fastv_trt.runtime.picture import draw_kept

        draw_kept(request, answer.prefill, save_kept)
    if json:
        print_json(as_json(answer))
        return
    milliseconds = {part: f"{1e3 * seconds:.1f}" for part, seconds in answer.timings.items()}
    console.print(
        f"kept {answer.kept_tokens} of {answer.image_tokens} image tokens; TTFT {1e3 * answer.prefill.ttft:.1f} ms "
        f"({', '.join(f'{part} {value}' for part, value in milliseconds.items() if part != 'decode')}); "
        f"{answer.decode_steps} decode steps {milliseconds['decode']} ms; KV {mebibytes(answer.kv_bytes)}",
        style="dim",
    )


def _dump(bundle: Any, text: str, pictures: list[Path], raw: bool, path: Path) -> None:
    """Write what the graphs would be given; nothing is run."""
    from fastv_trt.runtime.processing import Processor
    from fastv_trt.runtime.request_file import write_request

    processor = Processor.of(bundle)
    prompt = text if raw else processor.render([processor.user(text, len(pictures))])
    request = processor.request(prompt, pictures)
    write_request(request, path)
    console.print(
        f"wrote {len(request.input_ids)} tokens, {sum(request.image_sizes)} of pictures, to {path}", style="dim"
    )


def as_json(answer: Any) -> dict[str, Any]:
    """An `Answer` as a JSON document: ids, counts, seconds and bytes."""
    prefill = answer.prefill
    return {
        "text": answer.text,
        "tokens": list(answer.tokens),
        "prompt_tokens": prefill.prompt_tokens,
        "image_tokens": prefill.image_tokens,
        "kept_tokens": prefill.kept_tokens,
        "keep_indices": prefill.keep_indices.tolist(),
        "scores": None if prefill.scores is None else [float(score) for score in prefill.scores],
        "ttft_seconds": prefill.ttft,
        "timings_seconds": answer.timings,
        "decode_steps": answer.decode_steps,
        "kv_bytes": answer.kv_bytes,
        "notes": list(prefill.notes),
    }
