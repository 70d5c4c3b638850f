"""A typed, shaped piece of memory, on the host or on a device: what sessions read and write."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fastv_trt.errors import InputError, UnavailableError

if TYPE_CHECKING:
    from fastv_trt.runtime.dlpack import Exported

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4}


@dataclass(frozen=True)
class Tensor:
    """A contiguous block at `address`.

    Attributes:
        address: of the first element, on the device that owns it.
        shape: in elements.
        dtype: as in the bundle: "float32", "float16", "bfloat16", "int64".
        owner: keeps the memory alive.
    """

    address: int
    shape: tuple[int, ...]
    dtype: str
    owner: Any

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def row(self, index: int) -> Tensor:
        """The sub-tensor [1, ...] at `index` of the first axis; it shares the memory."""
        step = math.prod(self.shape[1:]) * ITEM_BYTES[self.dtype]
        return Tensor(self.address + index * step, (1, *self.shape[1:]), self.dtype, self.owner)


class Device(Protocol):
    """Where tensors live and graphs run."""

    name: str

    def capacity(self, graph: str, needed: int) -> int:
        """Cache slots per row to allocate for `graph` ("prefix" or "suffix") where `needed` are: C of its caches.

        Raises:
            InputError: its capacity is fixed, and less.
        """
        ...

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """New memory, zeroed: what was never written must not be NaN, since a mask only multiplies it by 0."""
        ...

    def upload(self, array: NDArray[Any]) -> Tensor: ...

    def take(self, value: Any, dtype: str) -> Tensor:
        """A tensor of `dtype` from an array, or from anything that speaks DLPack: a frame on the GPU stays there.

        Raises:
            InputError: it lies where this device cannot read it, or in a form that it cannot.
        """
        ...

    def share(self, tensor: Tensor) -> Exported:
        """The same memory as a DLPack object, for torch, CuPy or JAX. All work on it is waited for first."""
        ...

    def write(self, target: Tensor, array: NDArray[Any]) -> None:
        """Overwrite a tensor of the same size."""
        ...

    def download(self, tensor: Tensor) -> NDArray[Any]:
        """A copy on the host. It stays valid whatever happens to the tensor."""
        ...

    def copy_slots(self, source: Tensor, target: Tensor, slots: int) -> None:
        """Copy the first `slots` of axis 2 of one cache [B,G,C,D] into another with more capacity."""
        ...

    def session(self, name: str) -> Session:
        """Load a graph of the bundle.

        Raises:
            FastVError: it cannot run on this device.
        """
        ...


class Session(Protocol):
    """One loaded graph."""

    def run(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Execute with inputs, and outputs that have a place, bound; the other outputs are allocated.

        Args:
            tensors: by input or output name. A `present.*` output given the tensor of its `past_key_values.*`
                input is written in place.

        Returns:
            Every output by name.
        """
        ...


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a bundle's one.

    Raises:
        UnavailableError: bfloat16 without ml_dtypes, which teaches it to NumPy.
    """
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise UnavailableError("expected ml-dtypes for bf16 on the host, found none; pip install ml-dtypes") from error
    wanted: DTypeLike = ml_dtypes.bfloat16
    return np.dtype(wanted)


def as_numpy(value: Any, dtype: str) -> NDArray[Any]:
    """An array of `dtype` from an array, a nested list, or a host tensor that speaks DLPack.

    Raises:
        InputError: it lies on a GPU, or is not a tensor.
    """
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
        try:
            value = np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"expected a tensor in host memory, found {type(value).__name__}: {reason}") from error
    try:
        return np.asarray(value).astype(numpy_dtype(dtype), copy=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"expected a tensor of {dtype}, found {type(value).__name__}: {error}") from error


def host(array: NDArray[Any]) -> Tensor:
    """A tensor over a NumPy array's own memory."""
    contiguous = np.ascontiguousarray(array)
    return Tensor(contiguous.ctypes.data, contiguous.shape, str(contiguous.dtype), contiguous)
