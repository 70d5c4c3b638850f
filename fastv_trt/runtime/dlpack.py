"""A tensor of ours as a DLPack object, so that torch, CuPy or JAX read it where it lies.

The other direction needs no code here: NumPy takes host tensors, `cuda.core` those on a GPU. Source: the DLPack
header, version 0.8 (the unversioned capsule, which every consumer accepts).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from fastv_trt.runtime.tensor import Tensor

HOST, CUDA = 1, 2  # DLDeviceType: kDLCPU, kDLCUDA
_CODES = {"float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16), "int64": (0, 64), "int32": (0, 32)}
_CAPSULE = b"dltensor"


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]  # ctypes' own way


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("dimensions", ctypes.c_int32),
        ("type", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]

_handed_out: dict[int, tuple[Any, ...]] = {}
"""By the address of its description: what a consumer has not given back yet."""


def _forget(managed: Any) -> None:
    _handed_out.pop(ctypes.addressof(managed.contents), None)


_delete = _Deleter(_forget)


_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = [ctypes.c_void_p, ctypes.c_char_p], ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = [ctypes.c_void_p, ctypes.c_char_p], ctypes.c_void_p
_new = ctypes.pythonapi.PyCapsule_New
_new.argtypes, _new.restype = [ctypes.c_void_p, ctypes.c_char_p, _Destructor], ctypes.py_object


def _dropped(capsule: int) -> None:
    # A consumer renames a capsule that it takes, and then calls the deleter itself.
    if _is_valid(capsule, _CAPSULE):
        _handed_out.pop(_pointer(capsule, _CAPSULE), None)


_destroy = _Destructor(_dropped)


@dataclass(frozen=True)
class Exported:
    """A tensor that speaks DLPack. What reads it shares its memory and keeps it alive.

    Attributes:
        tensor: contiguous; all work that writes it has been waited for.
        kind: `HOST` or `CUDA`.
        index: of the GPU.
    """

    tensor: Tensor
    kind: int = HOST
    index: int = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, self.index

    def __dlpack__(self, **_: Any) -> Any:
        """A capsule. The arguments that newer consumers pass (stream, max_version) ask for nothing that is not so."""
        shape = (ctypes.c_int64 * max(1, len(self.tensor.shape)))(*self.tensor.shape)
        code, bits = _CODES[self.tensor.dtype]
        described = _Tensor(
            self.tensor.address,
            _Device(self.kind, self.index),
            len(self.tensor.shape),
            _Type(code, bits, 1),
            ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
            None,  # no strides: contiguous
            0,
        )
        managed = _Managed(described, None, _delete)
        address = ctypes.addressof(managed)
        _handed_out[address] = (managed, shape, self.tensor)
        return _new(address, _CAPSULE, _destroy)
