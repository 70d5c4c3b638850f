"""Prefill time, decode time and memory against the share of image tokens dropped, on this machine's CPU.

    python benchmarks/prefill.py [--rounds 7] [--json F] [--plot F]

Without --bundle it makes the 0.5B-shaped checkpoint of make_model.py and exports it, once. All ratios are measured
in every round, in one process, and each is compared with the R = 0 of the same round; what is printed is the median
over rounds. Beside each ratio stands what the cost model (fastv_trt/cost.py) says it should be.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastv_trt import bench
from fastv_trt.bench import report
from fastv_trt.bundle import Bundle
from fastv_trt.runtime import Runtime

HERE = Path(__file__).resolve().parent
PARTS = ("vision", "prefix", "rank+select", "suffix")
MODEL_TARGET, RANK_TARGET, MEMORY_TARGET = 1.05, 0.01, 1.2


def prepare(cache: Path, k: int, dtype: str) -> Path:
    """The bundle of the 0.5B-shaped checkpoint under `cache`, made if it is not there."""
    checkpoint, bundle = cache / f"llava-0.5b-{dtype}", cache / f"llava-0.5b-{dtype}-k{k}"
    if not checkpoint.exists():
        subprocess.run([sys.executable, HERE / "make_model.py", checkpoint, "--dtype", dtype], check=True)
    if not bundle.exists():
        usage = peak_memory(["export", str(checkpoint), str(bundle), "--k", str(k), "--dtype", "fp32"])
        print(f"export: peak memory {mib(usage.get('VmHWM'))}, of which anonymous {mib(usage.get('RssAnon'))}")
    return bundle


def peak_memory(arguments: Sequence[str]) -> dict[str, int]:
    """Run `fastv-trt` with `arguments` in a new process; peak VmHWM and RssAnon in bytes, empty where unknown.

    Raises:
        RuntimeError: the command failed.
    """
    command = [sys.executable, "-c", "from fastv_trt.cli import program; program()", *arguments]
    peak: dict[str, int] = {}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, text=True)
        while process.poll() is None:
            for name, value in _status(process.pid).items():
                peak[name] = max(value, peak.get(name, 0))
            time.sleep(0.005)
        if process.returncode:
            output.seek(0)
            raise RuntimeError(f"fastv-trt {' '.join(arguments)} failed: {output.read().strip()[-500:]}")
    return peak


def _status(pid: int) -> dict[str, int]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    wanted = (line.split() for line in lines if line.startswith(("VmHWM:", "RssAnon:")))
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in wanted}


def picture() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (336, 336, 3), dtype=np.uint8)


def question(runtime: Runtime, text_tokens: int) -> str:
    """A question that, with the chat template around it, is `text_tokens` long if a character is a token."""
    sentence = "What is in this picture, and where is it? "
    request = runtime.request("?", [picture()])
    missing = text_tokens - (len(request.input_ids) - sum(request.image_sizes))
    return (sentence * (1 + max(0, missing) // len(sentence)))[: max(0, missing)] + "?"


def print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = ("R", "kept", "vision", "prefix", "rank+select", "suffix", "prefill", "of R=0", "fastest", "cost model")
    table = Table(
        *columns,
        "TTFT of R=0",
        "decode",
        "KV",
        title="milliseconds, medians; prefill is the decoder's; fastest: of all rounds, against R=0's",
    )
    for row in rows:
        table.add_row(
            f"{row['ratio']:.0%}",
            str(row["kept_tokens"]),
            *(f"{row['parts_ms'][name]['median']:.1f}" for name in PARTS),
            f"{row['decoder_prefill_ms']['median']:.0f}",
            f"{row['decoder_ratio']:.3f}",
            f"{row['fastest_ratio']:.3f}",
            f"{row['ideal_ratio']:.3f}",
            f"{row['ttft_ratio']:.3f}",
            f"{row['tpot_ms']['median']:.1f}",
            mib(row["kv_bytes"]),
        )
    Console(width=140, highlight=False).print(table)


def verdicts(rows: list[dict[str, Any]], memory: dict[str, int], held: int) -> list[tuple[str, float, float]]:
    """(what, found, at most) for every target that this run can judge; `held` is weights and caches in bytes."""
    found = [
        (f"prefill at R={row['ratio']:.0%} against R=0, over the cost model's", error, MODEL_TARGET)
        for row in rows
        if row["ratio"]
        for error in [row["decoder_ratio"] / row["ideal_ratio"]]
    ]
    ranked = [row["rank_share"] for row in rows if row["ratio"]]
    if ranked:
        found.append(("rank+select, share of prefill", max(ranked), RANK_TARGET))
    if "VmHWM" in memory:
        found.append(
            ("peak memory of `fastv-trt run` against weights and caches", memory["VmHWM"] / held, MEMORY_TARGET)
        )
    return found


def mib(count: float | None) -> str:
    return "unknown" if count is None else f"{count / 2**20:.1f} MiB" if count < 2**24 else f"{count / 2**20:.0f} MiB"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bundle", type=Path, help="measure this one instead of the 0.5B-shaped random model")
    parser.add_argument("--cache", type=Path, default=HERE.parent / "build" / "benchmarks", help="folder for the model")
    parser.add_argument("--k", type=int, default=2, help="cut before this layer")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="of the checkpoint's weights")
    parser.add_argument("--ratios", default="0,0.5,0.75,0.9", help="values of R; 0 is always measured")
    parser.add_argument("--ranking", default="last-query")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6, help="decode steps per round and ratio")
    parser.add_argument("--text-tokens", type=int, default=75)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--no-memory", action="store_true", help="leave out the run in a process of its own")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    try:
        ratios = {0.0, *(float(item) for item in args.ratios.split(","))}
    except ValueError:
        parser.error(f"expected --ratios as numbers separated by commas, found {args.ratios!r}")
    if not all(0.0 <= ratio <= 1.0 for ratio in ratios):
        parser.error(f"expected --ratios in 0..1, found {args.ratios!r}")
    if args.rounds < 1 or args.steps < 1:
        parser.error("expected 1 or more --rounds and --steps")
    args.ratios = sorted(ratios)
    return args


def main() -> None:
    args = arguments()
    bundle = Bundle.open(args.bundle or prepare(args.cache, args.k, args.dtype))
    weights, manifest = bundle.weight_bytes, bundle.manifest
    runtime = Runtime.load(bundle, threads=args.threads)
    text = question(runtime, args.text_tokens)
    request = runtime.request(text, [picture()])
    prompt = bench.Prompt(lambda: runtime.request(text, [picture()]), len(request.input_ids), sum(request.image_sizes))

    def progress(done: int, total: int) -> None:
        print(f"\rrun {done} of {total}", end="", file=sys.stderr, flush=True)

    points, noise = bench.measure(
        runtime,
        prompt,
        args.ratios,
        runs=args.rounds,
        warmup=1,
        new_tokens=args.steps + 1,
        ranking=args.ranking,
        on_run=progress,
    )
    print(file=sys.stderr)
    rows = bench.as_rows(bundle, points, prompt.tokens, prompt.image_tokens)
    memory: dict[str, int] = {}
    if not args.no_memory:
        del runtime  # two copies of the weights at once would be one too many on a small machine
        memory = run_memory(bundle, text, args.threads)
    model, machine = manifest.model, bench.machine(args.threads)
    title = f"{model.architecture}, {model.decoder} {model.layers} x {model.hidden_size}, K={manifest.k}"
    print(f"{title}, {manifest.dtype}; {prompt.tokens} prompt tokens, {prompt.image_tokens} of them image")
    print(f"{machine['processor']}, {machine['threads']} threads; {args.rounds} rounds; ranking {args.ranking}")
    print_table(rows)
    held = weights + next((row["kv_bytes"] for row in rows if row["ratio"] == 0.5), 0)
    print(
        f"memory of `fastv-trt run`: peak {mib(memory.get('VmHWM'))}, of which anonymous {mib(memory.get('RssAnon'))}; "
        f"weights {mib(weights)}"
    )
    judged = verdicts(rows, memory, held)
    for what, found, most in judged:
        print(f"{'ok  ' if found <= most else 'MISS'} {what}: {found:.4g} (at most {most:g})")
    print(noise)
    if args.json:
        content = {
            "bundle": model.model_dump() | {"k": manifest.k, "dtype": manifest.dtype},
            "machine": machine,
            "prompt_tokens": prompt.tokens,
            "image_tokens": prompt.image_tokens,
            "ranking": args.ranking,
            "rows": rows,
            "memory_bytes": {"peak": memory.get("VmHWM"), "anonymous": memory.get("RssAnon"), "weights": weights},
            "verdicts": [{"what": what, "found": found, "at_most": most} for what, found, most in judged],
            "noise": {"others": noise.others, "spread": noise.spread, "noisy": noise.noisy},
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if args.plot:
        args.plot.parent.mkdir(parents=True, exist_ok=True)
        report.plot(rows, args.plot, title)


def run_memory(bundle: Bundle, prompt: str, threads: int | None) -> dict[str, int]:
    """Peak memory of `fastv-trt run` with R = 50 % in a process of its own."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "picture.png"
        Image.fromarray(picture()).save(file)
        command = ["run", str(bundle.path), "--image", str(file), "--prompt", prompt, "--ratio", "0.5"]
        limits = ["--max-new-tokens", "8", *(["--threads", str(threads)] if threads else [])]
        return peak_memory([*command, *limits])


if __name__ == "__main__":
    main()
