"""ONNX Runtime: the CPU provider (the embedded default), and its CUDA, TensorRT and TensorRT-RTX providers."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from fastv_trt.bundle import Bundle
from fastv_trt.errors import FastVError, InputError, UnavailableError
from fastv_trt.limits import BuildLimits, profiles
from fastv_trt.runtime.dlpack import CUDA, Exported
from fastv_trt.runtime.optimized import Entry
from fastv_trt.runtime.tensor import Session, Tensor, as_numpy, host

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "tensorrt-rtx": "NvTensorRTRTXExecutionProvider",
}
_PROFILE_OPTIONS = {"tensorrt": "trt_profile", "tensorrt-rtx": "nv_profile"}
PLUGIN = "FASTV_TRT_RTX_PROVIDER"
"""Environment variable: path of the TensorRT-RTX provider's library, which is a plug-in of ONNX Runtime."""
_INSTALL = {
    "cpu": "install onnxruntime again",
    "cuda": "install onnxruntime-gpu in place of onnxruntime",
    "tensorrt": "install onnxruntime-gpu in place of onnxruntime, and TensorRT beside it",
    "tensorrt-rtx": f"set {PLUGIN} to the library of that plug-in, or run engines (--engine)",
}
THREAD_POOL = {"session.force_spinning_stop": "1", "session.intra_op.spin_duration_us": "200"}
"""Prefix and suffix are two thread pools that take turns. A pool that spins on after its run takes a core from the
other one, and one that spins for long within its run takes it from other programs. benchmarks/decode.py compares."""
_ELEMENT = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(int64)": "int64"}


def device(
    bundle: Bundle, name: str = "cpu", threads: int | None = None, limits: BuildLimits | None = None
) -> OrtCpu | OrtGpu:
    """A device by name.

    Args:
        bundle: whose graphs it will load.
        name: "cpu", "cuda", "tensorrt" or "tensorrt-rtx".
        threads: of the CPU provider; by default all cores this process may use.
        limits: what a request may be, for the two TensorRT providers, which compile for it as they load; by default
            derived from the model.

    Raises:
        InputError: unknown name, or a dtype that the device cannot run.
        UnavailableError: this onnxruntime lacks the provider.
    """
    if name not in PROVIDERS:
        raise InputError(f"expected a device of {', '.join(PROVIDERS)}, found {name!r}")
    if threads is not None and threads < 1:
        raise InputError(f"expected 1 or more threads, found {threads}")
    if name == "cpu" and bundle.manifest.dtype == "bf16":
        raise InputError("expected an fp32 or fp16 bundle on the CPU, found bf16, which its kernels lack; export again")
    if name == "tensorrt-rtx":
        _register_plugin()
    available = (*onnxruntime.get_available_providers(), *(found.ep_name for found in onnxruntime.get_ep_devices()))
    if PROVIDERS[name] not in available:
        raise UnavailableError(
            f"expected {PROVIDERS[name]} for --device {name}, found {', '.join(dict.fromkeys(available))}; "
            f"{_INSTALL[name]}"
        )
    if name == "cpu":
        return OrtCpu(bundle, threads)
    compiled = name in _PROFILE_OPTIONS
    return OrtGpu(bundle, threads, name, (limits or BuildLimits.of(bundle.manifest.model)) if compiled else None)


def _register_plugin() -> None:
    """Load the plug-in that the environment names, if any, once per process."""
    path, provider = os.environ.get(PLUGIN), PROVIDERS["tensorrt-rtx"]
    if not path or any(found.ep_name == provider for found in onnxruntime.get_ep_devices()):
        return
    try:
        onnxruntime.register_execution_provider_library(provider, path)
    except Exception as error:  # onnxruntime's own exceptions share no public base
        reason = str(error).strip().splitlines()[0]
        raise UnavailableError(f"expected {PLUGIN}={path} to be a provider's library, found: {reason}") from error


def profile_options(bundle: Bundle, graph: str, name: str, limits: BuildLimits) -> dict[str, str]:
    """The optimization profiles of one graph as a TensorRT provider takes them: "input:1x2,...", per end of the range.

    Several profiles are the same list once more, with the other sizes.
    """
    inputs = {
        record.name: _static(record.shape, limits.capacity_of(graph)) for record in bundle.manifest.graphs[graph].inputs
    }
    wanted = profiles(graph, limits, bundle.manifest.vision.axes)
    found = [problem for profile in wanted for problem in profile.problems(graph, inputs)]
    if found:
        raise InputError("expected profiles that fit the graphs, found: " + "; ".join(found))
    records = [profile.shapes(inputs) for profile in wanted]
    prefix = _PROFILE_OPTIONS[name]
    options = {
        f"{prefix}_{end}_shapes": ",".join(
            f"{tensor}:{'x'.join(str(size) for size in getattr(ranges, end))}"
            for record in records
            for tensor, ranges in record.shapes.items()
        )
        for end in ("min", "opt", "max")
    }
    return options | ({"nv_multi_profile_enable": "1"} if name == "tensorrt-rtx" and len(records) > 1 else {})


def _static(shape: tuple[int | str, ...], capacity: int) -> tuple[int | str, ...]:
    return tuple(capacity if axis == "C" else axis for axis in shape)


@dataclass
class OrtCpu:
    """Tensors are NumPy arrays; sessions read and write them where they are."""

    bundle: Bundle
    threads: int | None = None
    name: str = "cpu"
    kind: str = "cpu"

    def capacity(self, graph: str, needed: int) -> int:
        return needed

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        return host(np.zeros(shape, dtype))

    def upload(self, array: NDArray[Any]) -> Tensor:
        return host(array)

    def take(self, value: Any, dtype: str) -> Tensor:
        return self.upload(as_numpy(value, dtype))

    def share(self, tensor: Tensor) -> Exported:
        return Exported(tensor)

    def write(self, target: Tensor, array: NDArray[Any]) -> None:
        np.copyto(self._view(target), array)

    def download(self, tensor: Tensor) -> NDArray[Any]:
        return self._view(tensor).copy()

    def copy_slots(self, source: Tensor, target: Tensor, slots: int) -> None:
        self._view(target)[:, :, :slots] = self._view(source)[:, :, :slots]

    def providers(self, graph: str) -> list[tuple[str, dict[str, str]]]:
        return [(PROVIDERS["cpu"], {})]

    def session(self, name: str) -> Session:
        return OrtSession(self, name)

    @staticmethod
    def _view(tensor: Tensor) -> NDArray[Any]:
        base: NDArray[Any] = tensor.owner
        flat = base.reshape(-1)
        first = (tensor.address - base.ctypes.data) // base.itemsize
        return flat[first : first + math.prod(tensor.shape)].reshape(tensor.shape)


@dataclass
class OrtGpu:
    """Tensors are OrtValues in GPU memory. Not run on hardware by this project so far: see README.

    Attributes:
        limits: of the two TensorRT providers: capacities and profiles; None for CUDA, which takes any size.
    """

    bundle: Bundle
    threads: int | None = None
    name: str = "cuda"
    limits: BuildLimits | None = None
    kind: str = "cuda"

    def capacity(self, graph: str, needed: int) -> int:
        if self.limits is None:
            return needed
        fixed = self.limits.capacity_of(graph)
        if needed > fixed:
            raise InputError(
                f"expected prompt and new tokens within the {fixed} cache slots of the {graph} graph on "
                f"{self.name}, found {needed}; ask for fewer, or load with larger limits"
            )
        return fixed

    def providers(self, graph: str) -> list[tuple[str, dict[str, str]]]:
        """The provider and its options; beside TensorRT also CUDA, for what TensorRT leaves."""
        if self.limits is None:
            return [(PROVIDERS[self.name], {})]
        options = profile_options(self.bundle, graph, self.name, self.limits)
        return [(PROVIDERS[self.name], options), (PROVIDERS["cuda"], {})]

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        return self.upload(np.zeros(shape, dtype))

    def upload(self, array: NDArray[Any]) -> Tensor:
        value = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), "cuda", 0)
        return Tensor(value.data_ptr(), array.shape, str(array.dtype), value)

    def take(self, value: Any, dtype: str) -> Tensor:
        return self.upload(as_numpy(value, dtype))

    def share(self, tensor: Tensor) -> Exported:
        return Exported(tensor, CUDA)

    def write(self, target: Tensor, array: NDArray[Any]) -> None:
        target.owner.update_inplace(np.ascontiguousarray(array))

    def download(self, tensor: Tensor) -> NDArray[Any]:
        whole: NDArray[Any] = tensor.owner.numpy()
        first = (tensor.address - tensor.owner.data_ptr()) // whole.itemsize
        return whole.reshape(-1)[first : first + math.prod(tensor.shape)].reshape(tensor.shape).copy()

    def copy_slots(self, source: Tensor, target: Tensor, slots: int) -> None:
        grown = np.zeros(target.shape, target.dtype)
        grown[:, :, :slots] = self.download(source)[:, :, :slots]
        self.write(target, grown)

    def session(self, name: str) -> Session:
        return OrtSession(self, name)


@dataclass
class OrtSession:
    """One ONNX graph in ONNX Runtime, driven through an I/O binding that is kept between runs."""

    device: OrtCpu | OrtGpu
    name: str
    _session: Any = field(init=False, repr=False)
    _binding: Any = field(init=False, repr=False)
    # What each name is bound to, as (address, shape, dtype) and not as a tensor: a binding must not keep the caches of
    # a request alive that has ended. Every run checks every name against these, so memory that is gone is never used.
    _bound: dict[str, tuple[int, tuple[int, ...], str]] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        path = self.device.bundle.graph_path(self.name)
        provider = PROVIDERS[self.device.name]
        options = _options(self.device.threads)
        if isinstance(self.device, OrtGpu) and self.device.limits is not None:
            options.add_free_dimension_override_by_name("C", self.device.limits.capacity_of(self.name))
        try:
            self._session = self._open(path, options)
        except FastVError:
            raise
        except Exception as error:  # onnxruntime's own exceptions share no public base
            reason = str(error).strip().splitlines()[0]
            raise FastVError(f"expected {path.name} to load on {provider}, found: {reason}") from error
        if provider not in self._session.get_providers():
            raise UnavailableError(
                f"expected {provider} to load for --device {self.device.name}, found that it did not; "
                "check its libraries (CUDA, cuDNN, TensorRT)"
            )
        self._inputs = {value.name: _ELEMENT[value.type] for value in self._session.get_inputs()}
        self._outputs = [value.name for value in self._session.get_outputs()]
        self._binding = self._session.io_binding()

    def _open(self, path: Path, options: Any) -> Any:
        """A session: on the CPU from its optimized form, which is written now if it is not there."""
        providers = self.device.providers(self.name)
        entry = Entry.of(self.device.bundle, self.name) if isinstance(self.device, OrtCpu) else None
        if entry is None:
            return _load(str(path), options, providers)
        if entry.usable():
            ready = _options(self.device.threads)
            ready.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            return _load(str(entry.model), ready, providers)
        with entry.writing(options):
            return _load(str(path), options, providers)

    def run(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        binding = self._binding
        bound = self._bound
        for name, dtype in self._inputs.items():
            tensor = tensors[name]
            place = (tensor.address, tensor.shape, tensor.dtype)
            if bound.get(name) != place:
                if tensor.dtype != dtype:
                    raise InputError(f"expected {name} as {dtype} for graph {self.name}, found {tensor.dtype}")
                binding.bind_input(name, self.device.kind, 0, np.dtype(dtype), tensor.shape, tensor.address)
                bound[name] = place
        free = []
        for name in self._outputs:
            output = tensors.get(name)
            if output is None:
                free.append(name)
                bound.pop(name, None)
                binding.bind_output(name, self.device.kind, 0)
                continue
            place = (output.address, output.shape, output.dtype)
            if bound.get(name) != place:
                binding.bind_output(name, self.device.kind, 0, np.dtype(output.dtype), output.shape, output.address)
                bound[name] = place
        self._session.run_with_iobinding(binding)
        if not free:
            return {name: tensors[name] for name in self._outputs}
        values = dict(zip(self._outputs, binding.get_outputs(), strict=True))
        return {name: self._own(values[name]) if name in free else tensors[name] for name in self._outputs}

    def _own(self, value: Any) -> Tensor:
        # A view of an OrtValue dies with the session, so what leaves here on the host is a copy.
        if self.device.kind == "cpu":
            return host(value.numpy().copy())
        return Tensor(value.data_ptr(), tuple(value.shape()), _ELEMENT[value.data_type()], value)


def _load(path: str, options: Any, providers: list[tuple[str, dict[str, str]]]) -> Any:
    """A session on the first provider, which may be one of the library's own or a plug-in."""
    plugged = [found for found in onnxruntime.get_ep_devices() if found.ep_name == providers[0][0]]
    if providers[0][0] in onnxruntime.get_available_providers() or not plugged:
        return onnxruntime.InferenceSession(path, options, providers=providers)
    options.add_provider_for_devices(plugged[:1], providers[0][1])
    return onnxruntime.InferenceSession(path, options)


def _options(threads: int | None) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
    options.log_severity_level = 3
    for key, value in THREAD_POOL.items():
        options.add_session_config_entry(key, value)
    options.enable_cpu_mem_arena = False
    return options
