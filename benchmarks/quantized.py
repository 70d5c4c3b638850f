"""Prefill and decode of several bundles of one model, alternating: how much faster quantized graphs are here.

    python benchmarks/quantized.py FP32_BUNDLE INT8_BUNDLE INT4_BUNDLE --checkpoint CHECKPOINT

All bundles answer one prompt with one picture of noise, in turns, so that a slower machine meets all of them alike.
With --checkpoint, plain PyTorch takes a turn too: the checkpoint's own decoder layers in bfloat16, with FastV's
selection between layers K-1 and K. Prints median and fastest round of the decoder's part of the prefill (prefix,
ranking, suffix; not the vision tower) and of one decode step, and how many times faster than the first bundle the
fastest round was: on a machine that is not quiet it says more than the median.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fastv_trt.bundle import Bundle
from fastv_trt.pruning import Pruning, select
from fastv_trt.runtime import Request, Runtime

STEPS = 8
Measure = Callable[[float], tuple[float, float]]
"""R -> seconds of the decoder's prefill, seconds of one decode step."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", type=Path, nargs="+", help="the first is what the others are compared with")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.0, 0.5])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()

    runtimes = [Runtime.load(Bundle.open(path), threads=args.threads) for path in args.bundles]
    noise = np.random.default_rng(0).integers(0, 256, (336, 336, 3), dtype=np.uint8)
    request = runtimes[0].request("What is on this picture?", [noise])
    measures: dict[str, Measure] = {
        str(path): of_bundle(runtime, request) for path, runtime in zip(args.bundles, runtimes, strict=True)
    }
    if args.checkpoint is not None:
        measures["torch bf16"] = of_torch(args.checkpoint, runtimes[0], request, args.threads)
    found: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for turn in range(args.rounds + 1):
        for ratio in args.ratios:
            for name, measure in measures.items():
                seconds = measure(ratio)
                if turn:  # the first round warms up
                    found.setdefault((name, ratio), []).append(seconds)
    report(found, list(measures), args.ratios)


def report(found: dict[tuple[str, float], list[tuple[float, float]]], names: list[str], ratios: list[float]) -> None:
    head = (
        "bundle",
        "R",
        *(f"{what}{unit}" for what in ("prefill", "decode step") for unit in (", ms", " fastest", " x")),
    )
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for ratio in ratios:
        base = [min(values) for values in zip(*found[names[0], ratio], strict=True)]
        for name in names:
            cells = []
            for index, values in enumerate(zip(*found[name, ratio], strict=True)):
                fastest = min(values)
                cells += [
                    f"{1e3 * statistics.median(values):.1f}",
                    f"{1e3 * fastest:.1f}",
                    f"{base[index] / fastest:.2f}",
                ]
            print(f"| {name} | {100 * ratio:g} % | " + " | ".join(cells) + " |")


def of_bundle(runtime: Runtime, request: Request) -> Measure:
    chain = runtime.chain

    def measure(ratio: float) -> tuple[float, float]:
        policy = Pruning(ratio=ratio, ranking=runtime.bundle.manifest.rankings[0])
        caches = chain.caches([request], [policy], STEPS + 1)
        prefill = chain.prefill(caches, 0, request, policy)
        token = int(prefill.logits.argmax())
        started = time.perf_counter()
        for _ in range(STEPS):
            token = int(chain.decode(caches, [token])[0].argmax())
        step = (time.perf_counter() - started) / STEPS
        return sum(prefill.timings[part] for part in ("prefix", "rank+select", "suffix")), step

    return measure


def of_torch(checkpoint: Path, runtime: Runtime, request: Request, threads: int | None) -> Measure:
    """The decoder's own layers in bfloat16, as a plain implementation of FastV would run them."""
    import torch
    from transformers import AutoModelForImageTextToText, DynamicCache

    if threads:
        torch.set_num_threads(threads)
    model: Any = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.bfloat16, local_files_only=True)
    text, head, k = model.eval().get_decoder(), model.get_output_embeddings(), runtime.bundle.manifest.k
    length, images = (
        len(request.input_ids),
        np.flatnonzero(request.input_ids == runtime.bundle.manifest.tokens.image[0]),
    )
    inputs = torch.randn(1, length, text.config.hidden_size).to(torch.bfloat16)

    def run(hidden: Any, layers: Any, positions: Any, cache: Any) -> Any:
        rotary = text.rotary_emb(hidden, positions)
        for layer in layers:
            hidden = layer(
                hidden, attention_mask=None, position_ids=positions, cache=cache, position_embeddings=rotary
            )  # fmt: skip
        return hidden

    def scores(hidden: Any, cache: Any) -> Any:
        """The last query's attention to every key, by one more projection of one row."""
        attention = text.layers[k - 1].self_attn
        keys = cache.layers[k - 1].keys.float()
        query = attention.q_proj(hidden[:, -1:]).float().unflatten(-1, (keys.shape[1], -1, keys.shape[-1]))
        weights = torch.einsum("bsghd,bgtd->bght", query, keys) * attention.scaling
        return torch.softmax(weights, dim=-1).mean(dim=(1, 2))[0]

    def measure(ratio: float) -> tuple[float, float]:
        cache = DynamicCache()
        with torch.no_grad():
            started = time.perf_counter()
            hidden = run(inputs, text.layers[:k], torch.arange(length)[None], cache)
            own = scores(hidden, cache)[images].numpy()
            keep = select(Pruning(ratio=ratio, ranking="external"), length, images, [len(images)], own)
            kept = torch.from_numpy(keep)
            hidden = run(hidden[:, kept], text.layers[k:], kept[None], cache)
            token = head(text.norm(hidden[:, -1:])).argmax(-1)
            prefill = time.perf_counter() - started
            started = time.perf_counter()
            for step in range(STEPS):
                token = head(
                    text.norm(run(text.embed_tokens(token), text.layers, torch.tensor([[length + step]]), cache))
                )
                token = token.argmax(-1)
            return prefill, (time.perf_counter() - started) / STEPS

    return measure


if __name__ == "__main__":
    main()
