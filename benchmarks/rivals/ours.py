"""This project: split at several R, as one graph, and pruned before layer 0.

    python ours.py BUNDLE ONE_GRAPH BUNDLE_K0 RATIOS THREADS

ONE_GRAPH is made by unsplit.py from the same decoder with the same parts; BUNDLE_K0 is the same model cut at K = 0, for
choices that see embeddings and no attention. "-" leaves either out.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
from worker import Run, serve

from fastv_trt.bundle import Bundle, FileRecord, GraphRecord
from fastv_trt.hashes import sha256
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Request, Runtime
from fastv_trt.runtime.caches import Caches
from fastv_trt.runtime.ort import OrtCpu, OrtSession


def split(runtime: Runtime, ratio: float) -> Run:
    chain, pruning = runtime.chain, Pruning(ratio=ratio)

    def run(ids: list[int], steps: int) -> tuple[float, list[float], list[int]]:
        given = np.array(ids)
        request = Request(given, {}, (int(np.isin(given, runtime.bundle.manifest.tokens.image).sum()),))
        started = time.perf_counter()
        caches = chain.caches([request], [pruning], steps + 1)
        tokens = [int(chain.prefill(caches, 0, request, pruning).logits.argmax())]
        prefill, seconds = time.perf_counter() - started, []
        for _ in range(steps):
            started = time.perf_counter()
            tokens.append(int(chain.decode(caches, tokens[-1:])[0].argmax()))
            seconds.append(time.perf_counter() - started)
        return prefill, seconds, tokens

    return run


def dart(features: np.ndarray, pivots: int = 8) -> np.ndarray:
    """Scores by duplication, on embeddings: the less a token resembles the pivots, the higher. Pivots stay.

    Source: DART (arXiv 2502.11494), whose pivots are tokens of large norm.
    """
    norms = np.linalg.norm(features, axis=1)
    chosen = np.argsort(-norms, kind="stable")[:pivots]
    unit = features / norms[:, None]
    scores = 1.0 - (unit @ unit[chosen].T).max(axis=1)
    scores[chosen] = 3.0
    return scores.astype(np.float32)


def embedded(runtime: Runtime, ratio: float, choice: str) -> Run:
    """Pruned before layer 0. DART's features are noise: what it costs does not depend on them."""
    chain, manifest = runtime.chain, runtime.bundle.manifest
    pruning = Pruning(ratio=ratio, ranking="external" if choice == "DART" else choice)

    def run(ids: list[int], steps: int) -> tuple[float, list[float], list[int]]:
        given = np.array(ids)
        image = int(np.isin(given, manifest.tokens.image).sum())
        noise = np.random.default_rng(0).standard_normal((image, manifest.model.hidden_size), dtype=np.float32)
        started = time.perf_counter()
        request = Request(given, {}, (image,), dart(noise) if choice == "DART" else None)
        caches = chain.caches([request], [pruning], steps + 1)
        tokens = [int(chain.prefill(caches, 0, request, pruning).logits.argmax())]
        prefill, seconds = time.perf_counter() - started, []
        for _ in range(steps):
            started = time.perf_counter()
            tokens.append(int(chain.decode(caches, tokens[-1:])[0].argmax()))
            seconds.append(time.perf_counter() - started)
        return prefill, seconds, tokens

    return run


def one_graph(bundle: Bundle, path: Path) -> Bundle:
    """A bundle of one graph, for a session to find it in."""
    files = tuple(
        FileRecord(path=f.name, bytes=f.stat().st_size, sha256=sha256(f)) for f in path.parent.glob("whole.*")
    )
    graphs = {"whole": GraphRecord(path=path.name, inputs=(), outputs=())}
    return Bundle(path.parent, bundle.manifest.model_copy(update={"k": 0, "graphs": graphs, "files": files}))


def unsplit(bundle: Bundle, path: Path, threads: int) -> Run:
    whole = one_graph(bundle, path)
    device = OrtCpu(whole, threads)
    session, manifest = OrtSession(device, "whole"), whole.manifest
    model = manifest.model

    def run(ids: list[int], steps: int) -> tuple[float, list[float], list[int]]:
        started = time.perf_counter()
        caches = Caches(manifest, device, 1, 0, len(ids) + steps + 1)
        slots = device.upload(np.arange(len(ids) + steps + 1))
        fixed = caches.suffix() | {"image_features": device.zeros((0, model.hidden_size), "float32")}
        prompt = {
            "input_ids": device.upload(np.array([ids])),
            "position_ids": device.upload(np.arange(len(ids))[None]),
            "slots": replace(slots, shape=(len(ids),)),
            "write_index": device.zeros((1,), "int64"),
        }
        logits = session.run(fixed | prompt)["logits"]
        tokens = [int(device.download(logits).argmax())]
        prefill, seconds = time.perf_counter() - started, []
        step = fixed | {name: device.zeros((1, 1), "int64") for name in ("input_ids", "position_ids")}
        step |= {
            "write_index": device.zeros((1,), "int64"),
            "logits": device.zeros((1, 1, model.vocab_size), "float32"),
        }
        for index in range(steps):
            started = time.perf_counter()
            position = len(ids) + index
            device.write(step["input_ids"], np.array([tokens[-1:]]))
            device.write(step["position_ids"], np.array([[position]]))
            device.write(step["write_index"], np.array([position]))
            step["slots"] = replace(slots, shape=(position + 1,))
            session.run(step)
            tokens.append(int(device.download(step["logits"])[0, 0].argmax()))
            seconds.append(time.perf_counter() - started)
        return prefill, seconds, tokens

    return run


if __name__ == "__main__":
    folder, graph, uncut, ratios, count = sys.argv[1:]
    opened = Bundle.open(folder)
    runtime = Runtime.load(opened, threads=int(count))
    rivals = {f"split R={ratio}": split(runtime, float(ratio)) for ratio in ratios.split(",")}
    if graph != "-":
        rivals["one graph"] = unsplit(opened, Path(graph), int(count))
    if uncut != "-":
        before = Runtime.load(uncut, threads=int(count))
        for choice in ("random", "uniform", "DART"):
            rivals[f"before layer 0, {choice} R=0.5"] = embedded(before, 0.5, choice)
    serve(rivals, {"onnxruntime": onnxruntime.__version__})
