"""ONNX Runtime GenAI: python genai.py NAME=FOLDER ... THREADS. Runs in an environment of its own."""

from __future__ import annotations

import json
import sys
import time

import onnxruntime_genai
from worker import Run, serve


def rival(folder: str, threads: int) -> Run:
    config = onnxruntime_genai.Config(folder)
    # Its default is one thread; the model's own file says nothing about it.
    options = {"intra_op_num_threads": threads}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    model = onnxruntime_genai.Model(config)

    def run(ids: list[int], steps: int) -> tuple[float, list[float], list[int]]:
        params = onnxruntime_genai.GeneratorParams(model)
        params.set_search_options(max_length=len(ids) + steps + 1, min_length=len(ids) + steps + 1, do_sample=False)
        generator = onnxruntime_genai.Generator(model, params)
        started = time.perf_counter()
        generator.append_tokens(ids)
        generator.generate_next_token()
        prefill, seconds = time.perf_counter() - started, []
        tokens = [int(generator.get_next_tokens()[0])]
        for _ in range(steps):
            started = time.perf_counter()
            generator.generate_next_token()
            seconds.append(time.perf_counter() - started)
            tokens.append(int(generator.get_next_tokens()[0]))
        return prefill, seconds, tokens

    return run


if __name__ == "__main__":
    *pairs, threads = sys.argv[1:]
    found = dict(pair.split("=", 1) for pair in pairs)
    serve(
        {name: rival(folder, int(threads)) for name, folder in found.items()},
        {"onnxruntime-genai": onnxruntime_genai.__version__},
    )
