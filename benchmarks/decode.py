"""Decode time per token under different thread-pool settings of ONNX Runtime, alternating in one process.

    python benchmarks/decode.py [--bundle B] [--rounds 7]

A decode step runs two sessions in turn, so what one pool does after its run costs the other one. "busy" in the last
column is CPU time over wall time: what a setting takes from other programs on the same cores.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from unittest import mock

from prefill import HERE, picture, prepare, question

from fastv_trt.bench import Noise, watching
from fastv_trt.bundle import Bundle
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Request, Runtime, ort

STOP, SPIN = "session.force_spinning_stop", "session.intra_op.spin_duration_us"
SETTINGS: dict[str, dict[str, str]] = {
    "onnxruntime's default": {},
    "stop after the run": {STOP: "1"},
    "stop after the run, spin 200 us": {STOP: "1", SPIN: "200"},
    "no spinning": {"session.intra_op.allow_spinning": "0"},
}


def load(bundle: Bundle, settings: dict[str, str], threads: int | None) -> Runtime:
    with mock.patch.dict(ort.THREAD_POOL, settings, clear=True):
        return Runtime.load(bundle, threads=threads)


def once(runtime: Runtime, request: Request, steps: int) -> tuple[float, list[float], float]:
    """Decoder prefill seconds, seconds per decode step, and CPU seconds per second of decoding."""
    pruning = Pruning(ratio=0.5)
    caches = runtime.chain.caches([request], [pruning], steps)
    prefill = runtime.chain.prefill(caches, 0, request, pruning)
    token, seconds = int(prefill.logits.argmax()), []
    cpu = time.process_time()
    for _ in range(steps):
        started = time.perf_counter()
        token = int(runtime.chain.decode(caches, [token])[0].argmax())
        seconds.append(time.perf_counter() - started)
    return prefill.timings["prefix"] + prefill.timings["suffix"], seconds, (time.process_time() - cpu) / sum(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bundle", type=Path, help="by default the 0.5B-shaped random model")
    parser.add_argument("--cache", type=Path, default=HERE.parent / "build" / "benchmarks")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    bundle = Bundle.open(args.bundle or prepare(args.cache, 2, "fp32"))
    # Every setting has its own copy of the weights: memory for four is needed.
    runtimes = {name: load(bundle, settings, args.threads) for name, settings in SETTINGS.items()}
    first = next(iter(runtimes.values()))
    request = first.request(question(first, 75), [picture()])
    for runtime in runtimes.values():
        once(runtime, request, 1)
    noise = Noise()
    runs: dict[str, list[tuple[float, list[float], float]]] = {name: [] for name in SETTINGS}
    with watching(noise):
        for index in range(args.rounds):
            for name in list(SETTINGS) if index % 2 == 0 else reversed(list(SETTINGS)):
                runs[name].append(once(runtimes[name], request, args.steps))
    print(f"{'setting':34}{'prefill ms':>12}{'decode ms':>12}{'busy':>8}")
    for name, results in runs.items():
        prefill = 1e3 * statistics.median(result[0] for result in results)
        decode = 1e3 * statistics.median(second for result in results for second in result[1])
        print(f"{name:34}{prefill:12.0f}{decode:12.1f}{statistics.median(r[2] for r in results):8.2f}")
    print(noise)


if __name__ == "__main__":
    main()
