"""A SIMULATION of the parts of TensorRT-RTX and of the CUDA runtime that the session uses. No GPU is involved.

It is stricter than the real thing: work that is enqueued runs only when the stream is synchronized; memory is
poisoned when it is allocated and when it is freed; an address outside a live allocation, a shape outside the
active profile, an address or shape that was not set, and an alias on other memory are errors. "Device memory" is
real host memory, and an engine executes the same ONNX graph with ONNX Runtime's CPU provider.

What it cannot show: the numbers and the speed of a real engine. test_simulation.py checks that every name and
argument offered here exists on the real classes, so that this cannot drift into an API of its own.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
import tensorrt_rtx as real
from cuda.bindings import runtime as real_cuda

from fastv_trt.bundle import Bundle
from fastv_trt.targets import EngineRecord, Target

OK = real_cuda.cudaError_t.cudaSuccess
POISON = 0xFF  # NaN in every float type, -1 in integers
DTYPES = {"float32": real.DataType.FLOAT, "float16": real.DataType.HALF, "int64": real.DataType.INT64}
NUMPY = {"float32": np.float32, "float16": np.float16, "int64": np.int64}

Operation = Callable[[], None]


class Violation(AssertionError):
    """The session broke a rule of the API."""


@dataclass
class Stream:
    """Work that was enqueued and has not run."""

    pending: list[Operation] = field(default_factory=list)
    captured: list[Operation] | None = None

    def __int__(self) -> int:
        return id(self)


class SimulatedCuda:
    """Stands for the module `cuda.bindings.runtime`."""

    cudaError_t = real_cuda.cudaError_t
    cudaMemcpyKind = real_cuda.cudaMemcpyKind
    cudaStreamCaptureMode = real_cuda.cudaStreamCaptureMode

    def __init__(self, memory: int = 1 << 30) -> None:
        self.memory = memory
        self.live: dict[int, Any] = {}
        self.streams: dict[int, Stream] = {}
        self.launches = self.executions = self.allocations = 0
        self.copied_to_host = 0
        self.refuse_capture = False

    def cudaSetDevice(self, device: int) -> tuple[Any]:
        return (OK,)

    def cudaStreamCreate(self) -> tuple[Any, Stream]:
        stream = Stream()
        self.streams[int(stream)] = stream
        return OK, stream

    def cudaMallocAsync(self, size: int, hStream: Stream) -> tuple[Any, int | None]:
        self._not_capturing(hStream)
        if size <= 0:
            raise Violation("an empty allocation has no address")
        if sum(len(block) for block in self.live.values()) + size > self.memory:
            return self.cudaError_t.cudaErrorMemoryAllocation, None
        block = (ctypes.c_ubyte * (size + 256)).from_buffer(bytearray([POISON]) * (size + 256))
        address = -(-ctypes.addressof(block) // 256) * 256
        self.live[address] = block
        self.allocations += 1
        return OK, address

    def cudaFreeAsync(self, devPtr: int, hStream: Stream) -> tuple[Any]:
        def free() -> None:
            block = self.live.pop(devPtr)
            ctypes.memset(ctypes.addressof(block), POISON, len(block))

        if devPtr not in self.live:
            raise Violation("memory is freed twice")
        # Never part of a capture: what a graph uses must outlive it anyway.
        hStream.pending.append(free)
        return (OK,)

    def cudaMemsetAsync(self, devPtr: int, value: int, count: int, stream: Stream) -> tuple[Any]:
        self._enqueue(stream, lambda: ctypes.memset(self.device(devPtr, count), value, count))
        return (OK,)

    def cudaMemcpyAsync(self, dst: int, src: int, count: int, kind: Any, stream: Stream) -> tuple[Any]:
        kinds = self.cudaMemcpyKind
        if kind == kinds.cudaMemcpyHostToDevice:
            self._not_capturing(stream)
            staged = ctypes.string_at(src, count)  # pageable memory is staged at once
            self._enqueue(stream, lambda: ctypes.memmove(self.device(dst, count), staged, count))
        elif kind == kinds.cudaMemcpyDeviceToHost:
            self.copied_to_host += count
            self._enqueue(stream, lambda: ctypes.memmove(dst, self.device(src, count), count))
        else:
            raise Violation(f"the session has no use for {kind}")
        return (OK,)

    def cudaMemcpy2DAsync(
        self, dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: Any, stream: Stream
    ) -> tuple[Any]:
        if width > dpitch or width > spitch:
            raise Violation("a row is wider than its pitch")

        def copy() -> None:
            for row in range(height):
                ctypes.memmove(self.device(dst + row * dpitch, width), self.device(src + row * spitch, width), width)

        self._enqueue(stream, copy)
        return (OK,)

    def cudaStreamSynchronize(self, stream: Stream) -> tuple[Any]:
        self._not_capturing(stream)
        pending, stream.pending = stream.pending, []
        for operation in pending:
            operation()
        return (OK,)

    def cudaStreamBeginCapture(self, stream: Stream, mode: Any) -> tuple[Any]:
        self._not_capturing(stream)
        stream.captured = []
        return (OK,)

    def cudaStreamEndCapture(self, stream: Stream) -> tuple[Any, Any]:
        if stream.captured is None:
            raise Violation("a capture ends that did not begin")
        captured, stream.captured = stream.captured, None
        if self.refuse_capture:
            return self.cudaError_t.cudaErrorStreamCaptureInvalidated, None
        return OK, captured

    def cudaGraphInstantiate(self, graph: list[Operation], flags: int) -> tuple[Any, Any]:
        return OK, tuple(graph)

    def cudaGraphDestroy(self, graph: list[Operation]) -> tuple[Any]:
        return (OK,)

    def cudaGraphLaunch(self, graphExec: tuple[Operation, ...], stream: Stream) -> tuple[Any]:
        self.launches += 1
        for operation in graphExec:
            self._enqueue(stream, operation)
        return (OK,)

    def cudaGraphExecDestroy(self, graphExec: tuple[Operation, ...]) -> tuple[Any]:
        return (OK,)

    def device(self, address: int, size: int) -> int:
        """The address, if all of it lies within one live allocation."""
        for start, block in self.live.items():
            if start <= address and address + size <= start + len(block) - 256:
                return address
        raise Violation(f"illegal memory access of {size} bytes at {address:#x}")

    def _enqueue(self, stream: Stream, operation: Operation) -> None:
        (stream.pending if stream.captured is None else stream.captured).append(operation)

    def _not_capturing(self, stream: Stream) -> None:
        if stream.captured is not None:
            raise Violation("this cannot be part of a capture")


class SimulatedTensorRT:
    """Stands for the module `tensorrt_rtx`."""

    ILogger = real.ILogger
    TensorLocation = real.TensorLocation

    def __init__(self, bundle: Bundle, target: Target, cuda: SimulatedCuda) -> None:
        self.cuda = cuda
        self.plans = {
            record.plan.sha256: (bundle.graph_path(name), record) for name, record in target.manifest.engines.items()
        }

    def Runtime(self, logger: Any) -> SimulatedRuntime:
        if not isinstance(logger, real.ILogger):
            raise Violation("a runtime needs a logger")
        return SimulatedRuntime(self)


class SimulatedRuntime:
    """Stands for `tensorrt_rtx.Runtime`."""

    engine_host_code_allowed = True  # the unsafe value, so that the session must set it

    def __init__(self, trt: SimulatedTensorRT) -> None:
        self._trt = trt

    def deserialize_cuda_engine(self, serialized_engine: Any) -> SimulatedEngine | None:
        if self.engine_host_code_allowed:
            raise Violation("host code is allowed")
        found = self._trt.plans.get(hashlib.sha256(serialized_engine).hexdigest())
        return None if found is None else SimulatedEngine(self._trt.cuda, str(found[0]), found[1])


class SimulatedEngine:
    """Stands for `tensorrt_rtx.ICudaEngine`."""

    def __init__(self, cuda: SimulatedCuda, path: str, record: EngineRecord) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.cuda, self.record = cuda, record
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.io = {tensor.name: tensor for tensor in (*record.inputs, *record.outputs)}
        self.num_io_tensors = len(self.io)
        self.num_optimization_profiles = len(record.profiles)

    def get_tensor_name(self, index: int) -> str:
        return list(self.io)[index]

    def get_tensor_location(self, name: str) -> Any:
        return real.TensorLocation.HOST if self.io[name].shape_tensor else real.TensorLocation.DEVICE

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return self.record.aliases.get(name)

    def create_execution_context(self) -> SimulatedContext:
        return SimulatedContext(self)


class SimulatedContext:
    """Stands for `tensorrt_rtx.IExecutionContext`."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine, self._profile = engine, 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._inputs = {tensor.name for tensor in engine.record.inputs}

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self._profile, self._shapes = profile_index, {}
        return 0 <= profile_index < self._engine.num_optimization_profiles

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        limits = self._engine.record.profiles[self._profile].shapes[name]
        if len(shape) != len(limits.min):
            return False
        if not all(least <= size <= most for least, size, most in zip(limits.min, shape, limits.max, strict=True)):
            return False
        self._shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        if name not in self._engine.io or memory % 256:
            raise Violation(f"{name} has no such address")
        self._addresses[name] = memory
        return True

    def infer_shapes(self) -> list[str]:
        sizes: dict[str, int] = {}
        for tensor in self._engine.record.inputs:
            for axis, size in zip(tensor.axes, self._shapes.get(tensor.name, ()), strict=False):
                if isinstance(axis, str) and sizes.setdefault(axis, size) != size:
                    raise RuntimeError(f"axis {axis} is {sizes[axis]} and {size}")
        return sorted(self._inputs - set(self._shapes))

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        if name in self._shapes:
            return self._shapes[name]
        sizes = {"M": self._images()}
        for tensor in self._engine.record.inputs:
            if tensor.name not in self._shapes:
                return tuple(-1 if isinstance(axis, str) else axis for axis in self._engine.io[name].axes)
            sizes |= {a: s for a, s in zip(tensor.axes, self._shapes[tensor.name], strict=True) if isinstance(a, str)}
        return tuple(sizes[axis] if isinstance(axis, str) else axis for axis in self._engine.io[name].axes)

    def is_stream_capturable(self, stream: int) -> bool:
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        engine, cuda = self._engine, self._engine.cuda
        missing = (self._inputs - set(self._shapes)) | (set(engine.io) - set(self._addresses))
        if missing:
            raise Violation(f"shape or address of {sorted(missing)} is not set")
        for output, source in engine.record.aliases.items():
            if self._addresses[output] != self._addresses[source]:
                raise Violation(f"{output} is not in the memory of {source}")
        shapes = {name: self.get_tensor_shape(name) for name in engine.io}
        addresses = dict(self._addresses)

        def run() -> None:
            cuda.executions += 1
            binding = engine.session.io_binding()
            for name, tensor in engine.io.items():
                kind, shape = NUMPY[tensor.dtype], shapes[name]
                size = int(np.prod(shape)) * np.dtype(kind).itemsize
                place = cuda.device(addresses[name], size)
                bind = binding.bind_input if name in self._inputs else binding.bind_output
                bind(name, "cpu", 0, np.dtype(kind), shape, place)
            engine.session.run_with_iobinding(binding)

        cuda._enqueue(cuda.streams[stream_handle], run)
        return True

    def _images(self) -> int:
        """Rows that the vision graph gives, which its inputs alone do not name: asked of ONNX Runtime's own shapes."""
        if "pixel_values" not in self._shapes:
            return 0
        probe = np.zeros((1, *self._shapes["pixel_values"][1:]), NUMPY[self._engine.io["pixel_values"].dtype])
        rows = self._engine.session.run(None, {"pixel_values": probe})[0].shape[0]
        return int(rows) * self._shapes["pixel_values"][0]
