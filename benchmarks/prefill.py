"""Prefill time, decode time and memory against the share of image tokens dropped, on this machine's CPU.

    python benchmarks/prefill.py [--rounds 7] [--json F] [--plot F]

Without --bundle it makes the 0.5B-shaped checkpoint of make_model.py and exports it, once. All ratios are measured
in every round, in one process, and each is compared with the R = 0 of the same round; what is printed is the median
over rounds. Beside each ratio stands what the cost model (fastv_trt/cost.py) says it should be.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fastv_trt import cost
from fastv_trt.bundle import Bundle
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Request, Runtime

HERE = Path(__file__).resolve().parent
PARTS = ("vision", "prefix", "rank+select", "suffix")
DECODER = PARTS[1:]
TARGETS = {0.5: 0.62, 0.75: 0.45}  # of the decoder's prefill time at R = 0
RANK_TARGET, MEMORY_TARGET = 0.01, 1.3
NOISE = 0.05  # share of the machine that others took, or spread of R = 0, from which on we say so


@dataclass
class Point:
    """One ratio R: seconds of every round, by part, and of every decode step."""

    ratio: float
    kept: int = 0
    parts: list[dict[str, float]] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)

    def part(self, name: str) -> float:
        return statistics.median(parts[name] for parts in self.parts)

    def sums(self, names: Sequence[str]) -> list[float]:
        """Seconds of several parts together, one per round."""
        return [sum(parts[name] for name in names) for parts in self.parts]

    def against(self, base: Point, names: Sequence[str]) -> float:
        """Median over rounds of this point's time divided by the base's time in the same round."""
        return statistics.median(a / b for a, b in zip(self.sums(names), base.sums(names), strict=True))


@dataclass
class Noise:
    """What else the machine did while we measured.

    Attributes:
        others: share of all cores' time that other processes took; None where it cannot be read.
        spread: interquartile range of the R = 0 prefill over its median.
    """

    others: float | None = None
    spread: float = 0.0

    @property
    def noisy(self) -> bool:
        return (self.others or 0.0) > NOISE or self.spread > NOISE

    def __str__(self) -> str:
        others = "unknown" if self.others is None else f"{self.others:.0%}"
        verdict = "the machine was NOISY: repeat on a quiet one" if self.noisy else "the machine was quiet"
        return f"{verdict} (other processes took {others} of its cores; R=0 varied by {self.spread:.1%})"


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
    command = [sys.executable, "-c", "from fastv_trt.cli import main; main()", *arguments]
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


@contextmanager
def watching(noise: Noise) -> Iterator[None]:
    """Fill in the share of the cores this process may use that other processes took."""
    before, own = _busy(), time.process_time()
    started = time.perf_counter()
    yield
    after = _busy()
    if before is not None and after is not None:
        cores = len(os.sched_getaffinity(0))
        others = after - before - (time.process_time() - own)
        noise.others = max(0.0, others / (cores * (time.perf_counter() - started)))


def _busy() -> float | None:
    """Seconds that the cores of this process were busy or stolen since boot."""
    try:
        lines = Path("/proc/stat").read_text(encoding="utf-8").splitlines()
        cores = os.sched_getaffinity(0)
    except (OSError, AttributeError):
        return None
    ticks = 0
    for words in (line.split() for line in lines if line.startswith("cpu")):
        if words[0][3:].isdigit() and int(words[0][3:]) in cores:
            user, nice, system, _, _, irq, soft, steal = (int(word) for word in words[1:9])
            ticks += user + nice + system + irq + soft + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def picture() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (336, 336, 3), dtype=np.uint8)


def question(runtime: Runtime, text_tokens: int) -> str:
    """A question that, with the chat template around it, is `text_tokens` long if a character is a token."""
    sentence = "What is in this picture, and where is it? "
    request = runtime.request("?", [picture()])
    missing = text_tokens - (len(request.input_ids) - sum(request.image_sizes))
    return (sentence * (1 + max(0, missing) // len(sentence)))[: max(0, missing)] + "?"


def measure(
    runtime: Runtime, request: Request, ratios: Sequence[float], rounds: int, steps: int, ranking: str
) -> tuple[dict[float, Point], Noise]:
    """All ratios once per round, every second round backwards, after one warm-up each."""
    points, noise = {ratio: Point(ratio) for ratio in ratios}, Noise()
    for ratio in ratios:
        once(runtime, request, Point(ratio), 1, ranking)
    with watching(noise):
        for index in range(rounds):
            for ratio in ratios if index % 2 == 0 else reversed(ratios):
                once(runtime, request, points[ratio], steps, ranking)
            print(f"\rround {index + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    base = points[0.0].sums(DECODER)
    if rounds > 1:
        low, _, high = statistics.quantiles(base, n=4, method="inclusive")
        noise.spread = (high - low) / statistics.median(base)
    return points, noise


def once(runtime: Runtime, request: Request, point: Point, steps: int, ranking: str) -> None:
    chain, pruning = runtime.chain, Pruning(ratio=point.ratio, ranking=ranking)
    caches = chain.caches([request], [pruning], steps)
    prefill = chain.prefill(caches, 0, request, pruning)
    point.kept = prefill.kept_tokens
    point.parts.append({name: prefill.timings[name] for name in PARTS})
    token = int(prefill.logits.argmax())
    for _ in range(steps):
        started = time.perf_counter()
        token = int(chain.decode(caches, [token])[0].argmax())
        point.decode.append(time.perf_counter() - started)


def summary(bundle: Bundle, points: dict[float, Point], prompt: int, image: int) -> list[dict[str, Any]]:
    """One row per ratio; times in milliseconds."""
    model, k, base = bundle.manifest.model, bundle.manifest.k, points[0.0]
    whole = cost.prefill_flops(model, k, prompt, prompt)
    return [
        {
            "ratio": ratio,
            "kept_tokens": point.kept,
            **{f"{name}_ms": 1e3 * point.part(name) for name in PARTS},
            "decoder_prefill_ms": 1e3 * statistics.median(point.sums(DECODER)),
            "decoder_ratio": point.against(base, DECODER),
            # Noise only ever adds time, so on a noisy machine this one says more than the medians.
            "fastest_ratio": min(point.sums(DECODER)) / min(base.sums(DECODER)),
            "cost_model_ratio": cost.prefill_flops(model, k, prompt, prompt - image + point.kept) / whole,
            "total_ratio": point.against(base, PARTS),
            "rank_share": statistics.median(
                parts["rank+select"] / total for parts, total in zip(point.parts, point.sums(DECODER), strict=True)
            ),
            "decode_ms": 1e3 * statistics.median(point.decode),
            "kv_bytes": cost.kv_bytes(model, bundle.manifest.dtype, k, prompt, prompt - image + point.kept),
            "rounds": point.parts,
        }
        for ratio, point in points.items()
    ]


def print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = ("R", "kept", "vision", "prefix", "rank+select", "suffix", "prefill", "of R=0", "fastest", "cost model")
    table = Table(
        *columns,
        "with vision",
        "decode",
        "KV",
        title="milliseconds, medians; prefill is the decoder's; fastest: of all rounds, against R=0's",
    )
    for row in rows:
        table.add_row(
            f"{row['ratio']:.0%}",
            str(row["kept_tokens"]),
            *(f"{row[f'{name}_ms']:.1f}" for name in PARTS),
            f"{row['decoder_prefill_ms']:.0f}",
            f"{row['decoder_ratio']:.3f}",
            f"{row['fastest_ratio']:.3f}",
            f"{row['cost_model_ratio']:.3f}",
            f"{row['total_ratio']:.3f}",
            f"{row['decode_ms']:.1f}",
            mib(row["kv_bytes"]),
        )
    Console(width=140, highlight=False).print(table)


def verdicts(rows: list[dict[str, Any]], memory: dict[str, int], weights: int) -> list[tuple[str, float, float]]:
    """(what, found, at most) for every target that this run can judge."""
    found = [
        (f"prefill at R={row['ratio']:.0%} against R=0", row["decoder_ratio"], TARGETS[row["ratio"]])
        for row in rows
        if row["ratio"] in TARGETS
    ]
    ranked = [row["rank_share"] for row in rows if row["ratio"]]
    if ranked:
        found.append(("rank+select, share of prefill", max(ranked), RANK_TARGET))
    if "VmHWM" in memory:
        found.append(("peak memory of `fastv-trt run` against the weights", memory["VmHWM"] / weights, MEMORY_TARGET))
    return found


def plot(rows: list[dict[str, Any]], path: Path, title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels = [f"{row['ratio']:.0%}" for row in rows]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    bottom = np.zeros(len(rows))
    for name in PARTS:
        heights = np.array([row[f"{name}_ms"] for row in rows])
        left.bar(labels, heights, bottom=bottom, label=name)
        bottom += heights
    left.set(xlabel="R, image tokens dropped", ylabel="ms", title="prefill by part")
    left.legend()
    ratios = [row["ratio"] for row in rows]
    right.plot(ratios, [row["decoder_ratio"] for row in rows], "o-", label="measured")
    right.plot(ratios, [row["cost_model_ratio"] for row in rows], "x--", label="cost model (FLOPs)")
    right.set(xlabel="R", ylabel="of R = 0", ylim=(0, 1.05), title="decoder prefill")
    right.legend()
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def mib(count: float | None) -> str:
    return "unknown" if count is None else f"{count / 2**20:.1f} MiB" if count < 2**24 else f"{count / 2**20:.0f} MiB"


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


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
    weights = bundle.weight_bytes
    runtime = Runtime.load(bundle, threads=args.threads)
    prompt = question(runtime, args.text_tokens)
    request = runtime.request(prompt, [picture()])
    length, image = len(request.input_ids), sum(request.image_sizes)
    points, noise = measure(runtime, request, args.ratios, args.rounds, args.steps, args.ranking)
    rows = summary(bundle, points, length, image)
    threads = args.threads or len(os.sched_getaffinity(0))
    memory: dict[str, int] = {}
    if not args.no_memory:
        del runtime  # two copies of the weights at once would be one too many on a small machine
        memory = run_memory(bundle, prompt, args.threads)

    model = bundle.manifest.model
    title = f"{model.architecture}, {model.decoder} {model.layers} x {model.hidden_size}, K={bundle.manifest.k}"
    print(f"{title}, {bundle.manifest.dtype}; {length} prompt tokens, {image} of them image; ranking {args.ranking}")
    print(
        f"{processor_name()}, {threads} threads; {args.rounds} rounds; "
        f"preprocess {1e3 * request.preprocess_seconds:.0f} ms"
    )
    print_table(rows)
    print(
        f"memory of `fastv-trt run`: peak {mib(memory.get('VmHWM'))}, of which anonymous {mib(memory.get('RssAnon'))}; "
        f"weights {mib(weights)}"
    )
    for what, found, most in verdicts(rows, memory, weights):
        print(f"{'ok  ' if found <= most else 'MISS'} {what}: {found:.4g} (at most {most:g})")
    print(noise)
    if args.json:
        import onnxruntime

        content = {
            "bundle": bundle.manifest.model.model_dump() | {"k": bundle.manifest.k, "dtype": bundle.manifest.dtype},
            "machine": {"processor": processor_name(), "cores": os.cpu_count(), "threads": threads},
            "versions": {"python": platform.python_version(), "onnxruntime": onnxruntime.__version__},
            "prompt_tokens": length,
            "image_tokens": image,
            "ranking": args.ranking,
            "preprocess_ms": 1e3 * request.preprocess_seconds,
            "rows": rows,
            "memory_bytes": {"peak": memory.get("VmHWM"), "anonymous": memory.get("RssAnon"), "weights": weights},
            "noise": {"others": noise.others, "spread": noise.spread, "noisy": noise.noisy},
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if args.plot:
        plot(rows, args.plot, title)


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
