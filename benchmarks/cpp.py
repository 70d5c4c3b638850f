"""C++ against Python on ONNX Runtime: prefill and decode of the same request, turn and turn about in one process.

    python benchmarks/cpp.py BUNDLE PICTURE... [--library build/cpp/installed/lib/libfastv_trt.so] [--rounds 5]

Each runtime has sessions of its own; each round runs both, the one that begins changing from round to round.
"""

from __future__ import annotations

import argparse
import ctypes as c
import json
import statistics
from pathlib import Path
from typing import Any

from fastv_trt.bundle import Bundle
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Limits, Request, Runtime


class Error(c.Structure):
    _fields_ = (("code", c.c_int), ("text", c.c_char * 1024))


class Policy(c.Structure):
    _fields_ = (
        ("ratio", c.c_double),
        ("keep", c.c_int64),
        ("ranking", c.c_char_p),
        ("scope", c.c_int),
        ("seed", c.c_uint64),
        ("required", c.c_int),
    )


class PrefillOf(c.Structure):
    _fields_ = (
        *((name, c.c_int64) for name in ("prompt_tokens", "image_tokens", "kept_tokens")),
        *((name, c.c_double) for name in ("preprocess", "vision", "prefix", "rank_select", "suffix")),
    )


class Cpp:
    """The C++ runtime of a bundle, through its C interface."""

    def __init__(self, library: Path, bundle: Path, request: Request) -> None:
        self.lib = c.CDLL(str(library.resolve()))
        self.lib.fastv_tokens.restype = c.POINTER(c.c_int64)
        self.lib.fastv_prefill_of.restype = PrefillOf
        self.lib.fastv_decode_seconds.restype = c.c_double
        self.error, self.runtime, self.request = Error(), c.c_void_p(), c.c_void_p()
        self._call("load", str(bundle).encode(), b"cpu", 0, c.byref(self.runtime))
        ids, sizes = request.input_ids, (c.c_int64 * len(request.image_sizes))(*request.image_sizes)
        self._call("request_new", ids.ctypes, _size(len(ids)), sizes, _size(len(sizes)), c.byref(self.request))
        for name, value in request.vision_inputs.items():
            shape = (c.c_int64 * value.ndim)(*value.shape)
            self._call(
                "request_vision_input", self.request, name.encode(), value.ctypes, 0, shape, _size(value.ndim), 0
            )
        self._keep_alive = request

    def run(self, ratio: float, ranking: str, new_tokens: int) -> tuple[float, float, list[int]]:
        """Seconds of the prefill and of one decode step, and the tokens."""
        policy, done, count = Policy(ratio, -1, ranking.encode(), 0, 0, 0), c.c_void_p(), c.c_size_t()
        batch, none = (c.c_void_p * 1)(self.request), (c.c_int64 * 1)()
        rest = (c.c_int64(new_tokens), none, _size(0), None, None, None, c.byref(done))
        self._call("generate", self.runtime, batch, _size(1), c.byref(policy), _size(1), *rest)
        prefill = self.lib.fastv_prefill_of(done, _size(0))
        seconds = prefill.vision + prefill.prefix + prefill.rank_select + prefill.suffix
        step = self.lib.fastv_decode_seconds(done) / (new_tokens - 1)
        tokens = self.lib.fastv_tokens(done, _size(0), c.byref(count))[: count.value]
        self.lib.fastv_generation_free(done)
        return seconds, step, tokens

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self.lib, f"fastv_{name}")(*arguments, c.byref(self.error)):
            raise SystemExit(self.error.text.decode())


def _size(count: int) -> c.c_size_t:
    return c.c_size_t(count)


def in_python(runtime: Runtime, request: Request, ratio: float, ranking: str, new_tokens: int) -> Any:
    limits = Limits(new_tokens, stop=())
    answer = runtime.answers([request], Pruning(ratio=ratio, ranking=ranking), limits)[0]
    parts = answer.prefill.timings
    prefill = sum(seconds for part, seconds in parts.items() if part != "preprocess")
    return prefill, answer.decode_seconds / answer.decode_steps, list(answer.tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("pictures", nargs="+", type=Path)
    parser.add_argument("--prompt", default="What is this?")
    parser.add_argument("--library", type=Path, default=Path("build/cpp/installed/lib/libfastv_trt.so"))
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.0, 0.5, 0.75])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=16)
    options = parser.parse_args()

    bundle = Bundle.open(options.bundle)
    ranking = bundle.manifest.rankings[0] if bundle.manifest.rankings else "random"
    runtime = Runtime.load(bundle)
    request = runtime.request(options.prompt, options.pictures)
    cpp = Cpp(options.library, options.bundle, request)
    for ratio in options.ratios:
        taken: dict[str, list[Any]] = {"python": [], "c++": []}
        for round_ in range(options.rounds + 1):
            order = ("python", "c++") if round_ % 2 else ("c++", "python")
            for name in order:
                if name == "c++":
                    result = cpp.run(ratio, ranking, options.new_tokens)
                else:
                    result = in_python(runtime, request, ratio, ranking, options.new_tokens)
                if round_:  # the first warms up
                    taken[name].append(result)
        medians = {
            f"{name} {part} ms": round(1e3 * statistics.median(one[index] for one in rows), 3)
            for name, rows in taken.items()
            for index, part in enumerate(("prefill", "decode step"))
        }
        ratios = {
            f"c++ / python, {part}": round(
                statistics.median(a[i] / b[i] for a, b in zip(taken["c++"], taken["python"], strict=True)), 4
            )
            for i, part in enumerate(("prefill", "decode step"))
        }
        same = all(row[2] == taken["python"][0][2] for rows in taken.values() for row in rows)
        print(json.dumps({"ratio": ratio, **medians, **ratios, "same tokens": same}), flush=True)


if __name__ == "__main__":
    main()
