"""The C interface from ctypes: the same tokens as the Python runtime, and errors as codes."""

from __future__ import annotations

import ctypes as c
from pathlib import Path

import numpy as np

from fastv_trt import Pruning, Runtime
from fastv_trt.bundle import Bundle
from fastv_trt.runtime import Limits, Request


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


def test_a_bundle_answers_through_ctypes(
    installed: Path, demo: Bundle, requests: dict[str, tuple[Request, Path]]
) -> None:
    lib, error, request = c.CDLL(str(installed / "lib" / "libfastv_trt.so")), Error(), requests["white"][0]
    lib.fastv_tokens.restype = c.POINTER(c.c_int64)
    runtime, handle, done, count = c.c_void_p(), c.c_void_p(), c.c_void_p(), c.c_size_t()
    assert lib.fastv_load(str(demo.path).encode(), b"cpu", 0, c.byref(runtime), c.byref(error)) == 0, error.text
    ids, sizes = request.input_ids, np.array(request.image_sizes)
    pixels = request.vision_inputs["pixel_values"]
    shape = (c.c_int64 * 4)(*pixels.shape)
    place = c.byref(handle)
    assert not lib.fastv_request_new(ids.ctypes, c.c_size_t(len(ids)), sizes.ctypes, c.c_size_t(1), place, None)
    assert not lib.fastv_request_vision_input(
        handle, b"pixel_values", pixels.ctypes, 0, shape, c.c_size_t(4), 0, c.byref(error)
    )
    policy, batch, streamed = Policy(0.5, -1, b"last-query", 0, 0, 0), (c.c_void_p * 1)(handle), []
    listen = c.CFUNCTYPE(None, c.c_void_p, c.c_size_t, c.c_int64)(lambda user, row, token: streamed.append(token))
    one = c.c_size_t(1)
    rest = (c.c_int64(8), None, c.c_size_t(0), None, listen, None, c.byref(done), c.byref(error))
    assert lib.fastv_generate(runtime, batch, one, c.byref(policy), one, *rest) == 0, error.text
    tokens = lib.fastv_tokens(done, c.c_size_t(0), c.byref(count))[: count.value]

    answer = Runtime.load(demo).answers([request], Pruning(ratio=0.5), Limits(8))[0]
    assert tokens == streamed == list(answer.tokens)
    lib.fastv_generation_free(done)
    lib.fastv_request_free(handle)
    lib.fastv_unload(runtime)


def test_errors_are_codes_and_one_line(installed: Path, tmp_path: Path) -> None:
    lib, error, runtime = c.CDLL(str(installed / "lib" / "libfastv_trt.so")), Error(), c.c_void_p()
    assert lib.fastv_load(str(tmp_path).encode(), b"cpu", 0, c.byref(runtime), c.byref(error)) == 2
    assert error.text.decode().startswith("expected a bundle (a folder with bundle.json) at")
    assert not runtime.value
