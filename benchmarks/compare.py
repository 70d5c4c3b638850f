"""Rivals side by side on the same weights, prompt and threads, alternating in one run.

    python benchmarks/compare.py [--rounds 7] [--steps 8] [--json F] [--plot F]

Every rival is loaded once, in a process of its own (benchmarks/rivals/), and one runs at a time: each round runs all of
them, every second round backwards, and each ratio is taken within a round. The prompt is the same token ids for all,
image placeholders embedded as text: the decoder's work, without a vision tower. Environments and models that are not
there yet are made under --cache; a rival that could not be made is named, and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefill import HERE, prepare

from fastv_trt import bench
from fastv_trt.bundle import Bundle
from fastv_trt.pruning import Pruning

RIVALS = HERE / "rivals"
GENAI = "onnxruntime-genai==0.18.0"
SPLIT = "split R=0"
RATIOS = (0.0, 0.5, 0.75, 0.9)
# (what, rival, against, part, at most): what is wanted of the 0.5B shape on two threads.
WANTED = (
    ("split R=0 against one graph, prefill", SPLIT, "one graph", "prefill", 1.02),
    ("split R=0 against one graph, decode", SPLIT, "one graph", "decode", 1.03),
    ("against GenAI fp32, prefill R=0", SPLIT, "GenAI fp32", "prefill", 1.00),
    ("against GenAI fp32, prefill R=50 %", "split R=0.5", "GenAI fp32", "prefill", 0.60),
    ("against GenAI fp32, prefill R=75 %", "split R=0.75", "GenAI fp32", "prefill", 0.42),
    ("against GenAI fp32, decode", SPLIT, "GenAI fp32", "decode", 1.05),
    ("against plain torch FastV fp32, prefill R=50 %", "split R=0.5", "torch FastV fp32 R=0.5", "prefill", 0.5),
    ("against plain torch FastV fp32, prefill R=75 %", "split R=0.75", "torch FastV fp32 R=0.75", "prefill", 0.5),
)


@dataclass
class Worker:
    """A process that holds some rivals, and what it said about itself."""

    process: subprocess.Popen[str]
    rivals: list[str]
    about: dict[str, str]

    def run(self, rival: str, ids: list[int], steps: int) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"rival": rival, "ids": ids, "steps": steps}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{rival} ended in the middle of a run")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass
class Result:
    """One rival: seconds of prefill per round, median seconds of a decode step per round, and its tokens."""

    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


def start(log: Path, python: Path | str, script: str, *arguments: object) -> Worker:
    """Start a worker and wait until it has loaded.

    Raises:
        RuntimeError: it ended instead.
    """
    command = [str(python), str(RIVALS / script), *map(str, arguments)]
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{script} did not start: {log.read_text(encoding='utf-8').strip()[-300:]}")
    said = json.loads(line)
    return Worker(process, said["rivals"], said["about"])


def genai_environment(cache: Path) -> Path:
    """The interpreter of GenAI's environment: this one's packages, and GenAI in front of them."""
    folder = cache / "venv-genai"
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        here = next(Path(entry) for entry in sys.path if entry.endswith("site-packages"))
        site = next((folder / "lib").glob("python*/site-packages"))
        (site / "outer.pth").write_text(f"{here}\n", encoding="utf-8")
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", GENAI], check=True)
        (folder / ".ready").touch()
    return python


def genai_model(cache: Path, text: Path, precision: str) -> Path:
    """The text decoder as GenAI's own builder makes it for the CPU."""
    folder = cache / f"genai-{precision}"
    if not (folder / "genai_config.json").exists():
        builder = [genai_environment(cache), "-m", "onnxruntime_genai.models.builder", "-i", text, "-o", folder]
        options = ["-p", precision, "-e", "cpu", "-c", cache / "genai-cache"]
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        done = subprocess.run([*builder, *options], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"GenAI's builder failed for {precision}: {done.stderr.strip()[-300:]}")
    return folder


def workers(args: argparse.Namespace, bundle: Bundle, prompt: Any, threads: int) -> tuple[list[Worker], list[str]]:
    """All rivals, loaded, and why some are missing."""
    parts = args.cache / "rivals"
    if not (parts / "whole.onnx").exists():
        subprocess.run([sys.executable, RIVALS / "unsplit.py", args.checkpoint, parts], check=True)
    kept = ",".join(f"{r:g}:{Pruning(ratio=r).kept_tokens((prompt.image_tokens,))}" for r in RATIOS[1:3])
    ratios = ",".join(f"{ratio:g}" for ratio in RATIOS)
    fast: list[tuple[str, Any, tuple[object, ...]]] = [
        ("ours.py", sys.executable, (bundle.path, parts / "whole.onnx", args.bundle_k0 or "-", ratios, threads))
    ]
    for dtype in ("fp32", "bf16"):
        image = bundle.manifest.tokens.image[0]
        fast.append(("eager.py", sys.executable, (parts / "text", dtype, bundle.manifest.k, image, kept, threads)))
    missing = []
    try:
        models = [f"GenAI {p}={genai_model(args.cache, parts / 'text', p)}" for p in ("fp32", "int4")]
        fast.insert(1, ("genai.py", genai_environment(args.cache), (*models, threads)))
    except (RuntimeError, subprocess.CalledProcessError, OSError) as error:
        missing.append(f"ONNX Runtime GenAI ({GENAI}): {error}")
    found = []
    for index, (script, python, arguments) in enumerate(fast):
        try:
            found.append(start(args.cache / f"rival-{index}.log", python, script, *arguments))
        except RuntimeError as error:
            missing.append(str(error))
    return found, missing


def rounds(found: list[Worker], ids: list[int], count: int, steps: int, minutes: float) -> dict[str, Result]:
    """All rivals once per round, every second round backwards, after one warm-up each.

    No round is started after `minutes`, but one is always run.
    """
    started = time.monotonic()
    where = {rival: worker for worker in found for rival in worker.rivals}
    results = {rival: Result() for rival in where}
    for index in range(-1, count):
        if index > 0 and time.monotonic() - started > 60 * minutes:
            break
        for rival in list(where) if index % 2 == 0 else reversed(list(where)):
            answer = where[rival].run(rival, ids, steps if index >= 0 else 2)
            time.sleep(0.05)  # until the last one's threads have stopped spinning
            if index >= 0:
                results[rival].prefill.append(answer["prefill"])
                results[rival].decode.append(statistics.median(answer["steps"]))
                results[rival].tokens = answer["tokens"]
        print(f"\rround {index + 1} of {count}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return results


def ratio(results: dict[str, Result], rival: str, base: str, part: str) -> float:
    """Median over rounds of `rival`'s time over `base`'s in the same round."""
    pairs = zip(getattr(results[rival], part), getattr(results[base], part), strict=True)
    return statistics.median(a / b for a, b in pairs)


def show(results: dict[str, Result]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "rival",
        "prefill ms",
        "of split R=0",
        "decode ms/token",
        "of split R=0",
        "first tokens",
        title="medians; ratios are medians of rounds",
    )
    for name, result in results.items():
        table.add_row(
            name,
            f"{1e3 * statistics.median(result.prefill):.0f}",
            f"{ratio(results, name, SPLIT, 'prefill'):.3f}",
            f"{1e3 * statistics.median(result.decode):.1f}",
            f"{ratio(results, name, SPLIT, 'decode'):.3f}",
            " ".join(str(token) for token in result.tokens[:4]),
        )
    Console(width=140, highlight=False).print(table)


def plot(results: dict[str, Result], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 5), layout="constrained", sharey=True)
    names = list(results)[::-1]
    for axis, part in zip(axes, ("prefill", "decode"), strict=True):
        axis.barh(names, [1e3 * statistics.median(getattr(results[name], part)) for name in names])
        axis.set(xlabel="ms" if part == "prefill" else "ms per token", title=part)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cache", type=Path, default=HERE.parent / "build" / "benchmarks", help="folder for models")
    parser.add_argument("--checkpoint", type=Path, help="by default the 0.5B-shaped random model")
    parser.add_argument("--bundle", type=Path, help="made from the checkpoint")
    parser.add_argument("--bundle-k0", type=Path, help="the same cut at K = 0, for choices before layer 0")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=8, help="decode steps per run")
    parser.add_argument("--minutes", type=float, default=10.0, help="start no round after this")
    parser.add_argument("--text-tokens", type=int, default=75)
    parser.add_argument("--image-tokens", type=int, default=576)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    if args.rounds < 1 or args.steps < 1:
        parser.error("expected 1 or more --rounds and --steps")
    if (args.checkpoint is None) != (args.bundle is None):
        parser.error("expected --checkpoint and --bundle together, or neither")
    args.cache = args.cache.absolute()
    if args.bundle is None:
        args.bundle, args.bundle_k0 = prepare(args.cache, 2, "fp32"), prepare(args.cache, 0, "fp32")
        args.checkpoint = args.cache / "llava-0.5b-fp32"
    bundle = Bundle.open(args.bundle)
    request = bench.image_request(bundle, args.text_tokens, args.image_tokens)
    prompt = bench.Prompt(lambda: request, len(request.input_ids), args.image_tokens)
    machine = bench.machine(args.threads)
    found, missing = workers(args, bundle, prompt, machine["threads"])
    noise = bench.Noise()
    results = rounds(found, request.input_ids.tolist(), args.rounds, args.steps, args.minutes)
    base = results[SPLIT].prefill
    if len(base) > 1:
        low, _, high = statistics.quantiles(base, n=4, method="inclusive")
        noise.spread = (high - low) / statistics.median(base)
    for worker in found:
        machine["versions"] |= worker.about
    print(f"{prompt.tokens} prompt tokens, {prompt.image_tokens} of them image; {len(base)} rounds")
    print(f"{machine['processor']}, {machine['threads']} threads")
    show(results)
    for reason in missing:
        print(f"NOT MEASURED {reason}")
    verdicts: list[dict[str, Any]] = []
    for what, rival, against, part, most in WANTED:
        if rival in results and against in results:
            value = ratio(results, rival, against, part)
            verdicts.append({"what": what, "found": value, "at_most": most})
            print(f"{'ok  ' if value <= most else 'MISS'} {what}: {value:.3f} (at most {most:g})")
    if len(base) > 1:
        print(noise)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "machine": machine,
            "model": bundle.manifest.model.model_dump() | {"k": bundle.manifest.k},
            "prompt_tokens": prompt.tokens,
            "image_tokens": prompt.image_tokens,
            "results": {name: vars(result) for name, result in results.items()},
            "verdicts": verdicts,
            "missing": missing,
            "spread": noise.spread,
        }
        args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if args.plot:
        plot(results, args.plot)


if __name__ == "__main__":
    main()
