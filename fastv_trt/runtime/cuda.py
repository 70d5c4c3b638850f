"""Device memory, one stream and CUDA graphs, through cuda-python's runtime bindings. No torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastv_trt.errors import FastVError

ALIGNMENT = 256
"""TensorRT's alignment of device addresses, in bytes; also the least that is allocated, as an empty tensor needs an
address too."""


class Cuda:
    """One stream of one device. Everything is ordered on it; only `synchronize` waits.

    Args:
        runtime: `cuda.bindings.runtime`.
        device: index of the GPU.
    """

    def __init__(self, runtime: Any, device: int = 0) -> None:
        self.runtime, self.device = runtime, device
        self._call("cudaSetDevice", device)
        self.stream = self._call("cudaStreamCreate")

    @property
    def handle(self) -> int:
        """The stream as a number, as TensorRT takes it."""
        return int(self.stream)

    def allocate(self, size: int) -> Allocation:
        """New memory of `size` bytes or a little more, whose content is undefined.

        Raises:
            FastVError: the GPU is out of memory.
        """
        rounded = max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)
        return Allocation(self, int(self._call("cudaMallocAsync", rounded, self.stream)), rounded)

    def free(self, address: int) -> None:
        self._call("cudaFreeAsync", address, self.stream)

    def zero(self, address: int, size: int) -> None:
        if size:
            self._call("cudaMemsetAsync", address, 0, size, self.stream)

    def write(self, address: int, array: NDArray[Any]) -> None:
        """Copy from the host. Pageable memory is staged before the call returns, so `array` may go at once."""
        source = np.ascontiguousarray(array)
        if source.nbytes:
            kind = self.runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
            self._call("cudaMemcpyAsync", address, source.ctypes.data, source.nbytes, kind, self.stream)

    def read(self, address: int, into: NDArray[Any]) -> None:
        """Copy to the host and wait for it."""
        if into.nbytes:
            kind = self.runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
            self._call("cudaMemcpyAsync", into.ctypes.data, address, into.nbytes, kind, self.stream)
        self.synchronize()

    def copy_rows(self, source: int, source_pitch: int, target: int, target_pitch: int, width: int, rows: int) -> None:
        """Copy the first `width` bytes of each of `rows` rows; a pitch is the bytes from one row to the next."""
        kind = self.runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        if width and rows:
            self._call("cudaMemcpy2DAsync", target, target_pitch, source, source_pitch, width, rows, kind, self.stream)

    def synchronize(self) -> None:
        self._call("cudaStreamSynchronize", self.stream)

    def begin_capture(self) -> None:
        mode = self.runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", self.stream, mode)

    def end_capture(self) -> Graph:
        """What was enqueued since `begin_capture`, ready to be launched."""
        graph = self._call("cudaStreamEndCapture", self.stream)
        try:
            return Graph(self, self._call("cudaGraphInstantiate", graph, 0))
        finally:
            self._call("cudaGraphDestroy", graph)

    def launch(self, graph: Any) -> None:
        self._call("cudaGraphLaunch", graph, self.stream)

    def destroy(self, graph: Any) -> None:
        self._call("cudaGraphExecDestroy", graph)

    def _call(self, name: str, *arguments: Any) -> Any:
        status, *values = getattr(self.runtime, name)(*arguments)
        if status == self.runtime.cudaError_t.cudaErrorMemoryAllocation:
            size = f" for {arguments[0] / 2**20:.0f} MiB more" if name == "cudaMallocAsync" else ""
            raise FastVError(
                f"expected enough GPU memory{size}, found none left; use a smaller batch, a shorter prompt, or engines "
                "built with a smaller --capacity"
            )
        if status != self.runtime.cudaError_t.cudaSuccess:
            raise FastVError(f"expected {name} to succeed, found {status.name}")
        return values[0] if values else None


class Allocation:
    """A block of device memory, freed on the stream when the last tensor in it is gone."""

    def __init__(self, cuda: Cuda, address: int, size: int) -> None:
        self.cuda, self.address, self.size = cuda, address, size

    def __del__(self) -> None:
        self.cuda.free(self.address)


class Graph:
    """A captured CUDA graph: shapes and addresses in it are frozen."""

    def __init__(self, cuda: Cuda, executable: Any) -> None:
        self._cuda, self._executable = cuda, executable

    def launch(self) -> None:
        self._cuda.launch(self._executable)

    def __del__(self) -> None:
        self._cuda.destroy(self._executable)
