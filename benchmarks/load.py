"""How long a bundle takes to load, first and second time, against reading its weights; and what it holds in memory.

    python benchmarks/load.py [--bundle B] [--rounds 5] [--json F]

Every load is a process of its own, with the weights in the operating system's page cache. "off" keeps no optimized
graphs, "first" makes them, "again" finds them (fastv_trt/runtime/optimized.py).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from prefill import HERE, prepare

from fastv_trt.bundle import Bundle

CODE = """
import json, sys, time
from pathlib import Path
from fastv_trt.bundle import Bundle
from fastv_trt.bench import image_request
from fastv_trt.pruning import Pruning
import fastv_trt.runtime.ort
from fastv_trt.runtime import Runtime
started = time.perf_counter()
bundle = Bundle.open(sys.argv[1])
checked = time.perf_counter() - started
runtime = Runtime.load(bundle)
loaded = time.perf_counter() - started
request, pruning = image_request(bundle, 75, 576), Pruning(ratio=0.5)
caches = runtime.chain.caches([request], [pruning], 9)
token = int(runtime.chain.prefill(caches, 0, request, pruning).logits.argmax())
steps = []
for _ in range(8):
    begun = time.perf_counter()
    token = int(runtime.chain.decode(caches, [token])[0].argmax())
    steps.append(time.perf_counter() - begun)
status = Path("/proc/self/status")
lines = status.read_text().splitlines() if status.exists() else []
memory = {w[0][:-1]: 1024 * int(w[1]) for w in map(str.split, lines) if w and w[0] in ("VmHWM:", "RssAnon:")}
print(json.dumps({"checked": checked, "loaded": loaded, "step": sorted(steps)[4], **memory}))
"""


def load(bundle: Path, cache: str) -> dict[str, Any]:
    """One load in a new process: seconds, and bytes at the end of a short answer."""
    environment = os.environ | {"FASTV_TRT_CACHE": cache}
    command = [sys.executable, "-c", CODE, str(bundle)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"load.py: a load failed: {done.stderr.strip()[-400:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def reading(bundle: Bundle) -> float:
    """Seconds to read all files of the graphs, in pieces of 1 MiB."""
    started = time.perf_counter()
    for file in bundle.manifest.files:
        if file.path.startswith("onnx/"):
            with (bundle.path / file.path).open("rb", buffering=0) as stream:
                while stream.read(1 << 20):
                    pass
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bundle", type=Path, help="by default the 0.5B-shaped random model")
    parser.add_argument("--cache", type=Path, default=HERE.parent / "build" / "benchmarks")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("expected 1 or more --rounds")
    bundle = Bundle.open(args.bundle or prepare(args.cache, 2, "fp32"))
    reads = [reading(bundle)]
    runs: dict[str, list[dict[str, Any]]] = {"off": [], "first": [], "again": []}
    with tempfile.TemporaryDirectory(dir=bundle.path.parent) as folder:
        runs["first"].append(load(bundle.path, folder))
        load(bundle.path, folder)
        for _ in range(args.rounds):
            reads.append(reading(bundle))
            runs["off"].append(load(bundle.path, "off"))
            runs["again"].append(load(bundle.path, folder))
        kept = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    read = statistics.median(reads[1:])
    print(f"reading the weights ({bundle.weight_bytes / 2**20:.0f} MiB): {read:.2f} s; kept {kept / 2**20:.0f} MiB")
    print(f"{'':8}{'load s':>9}{'of it hashing':>15}{'of reading':>12}{'step ms':>9}{'peak MiB':>10}{'anonymous':>11}")
    for name, found in runs.items():
        middle = {key: statistics.median(run[key] for run in found) for key in found[0]}
        print(
            f"{name:8}{middle['loaded']:9.2f}{middle['checked']:15.2f}{middle['loaded'] / read:12.2f}"
            f"{1e3 * middle['step']:9.1f}{middle.get('VmHWM', 0) / 2**20:10.0f}{middle.get('RssAnon', 0) / 2**20:11.0f}"
        )
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        content = {"reading_seconds": reads[1:], "runs": runs, "kept_bytes": kept, "weight_bytes": bundle.weight_bytes}
        args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
