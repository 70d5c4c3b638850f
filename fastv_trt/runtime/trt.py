"""TensorRT and TensorRT-RTX engines behind the session protocol, driven without torch.

No engine has run on a GPU in this project so far: the tests drive this file with a simulation of the two APIs
(tests/engines/simulation.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastv_trt import nvidia, targets
from fastv_trt.bundle import Bundle
from fastv_trt.errors import FastVError, InputError, UnavailableError
from fastv_trt.runtime import dlpack
from fastv_trt.runtime.cuda import ALIGNMENT, Cuda
from fastv_trt.runtime.tensor import ITEM_BYTES, Tensor, as_numpy, numpy_dtype
from fastv_trt.runtime.trt_session import TrtSession
from fastv_trt.targets import Target


def device(bundle: Bundle, name: str | None = None, *, trust_self_test: bool = True) -> TrtDevice:
    """The device of one target of a bundle.

    Args:
        name: of a folder under engines/; by default the first one that runs here.
        trust_self_test: refuse engines that failed their self-test. Not when it is run again.

    Raises:
        InputError: no such target.
        UnavailableError: none runs here, with every reason.
        BundleError: a plan was altered.
    """
    paths = {path.name: path for path in targets.of(bundle)}
    if not paths or (name is not None and name not in paths):
        found = ", ".join(paths) or "none"
        raise InputError(f"expected engines {name or ''} in {bundle.path}, found {found}; make them with build")
    gpus = nvidia.gpus()
    reasons = []
    for path in [paths[name]] if name is not None else paths.values():
        target = Target.open(path)
        try:
            library = nvidia.library(target.manifest.backend)
        except UnavailableError as error:
            reasons.append(f"{path.name}: {error}")
            continue
        obstacles = target.obstacles(bundle, gpus, library.version, trust_self_test=trust_self_test)
        if not obstacles:
            gpu = next(g for g in gpus.devices if g.compute in target.manifest.compute_capabilities)
            return TrtDevice(bundle, target, library.trt, Cuda(nvidia.cuda(), gpu.index))
        reasons.append(f"{path.name}: {', '.join(obstacles)}")
    raise UnavailableError(f"expected engines that run on this machine, found: {'; '.join(reasons)}")


@dataclass
class TrtDevice:
    """Tensors in GPU memory, all work on one stream.

    Args:
        bundle: whose graphs the engines are.
        target: the engines.
        trt: the module tensorrt or tensorrt_rtx.
        cuda: the GPU and its stream.
        cuda_graphs: capture decode steps.
    """

    bundle: Bundle
    target: Target
    trt: Any
    cuda: Cuda
    cuda_graphs: bool = True
    name: str = field(init=False)
    slots: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        limits = self.target.manifest.limits
        self.name = self.target.manifest.backend
        # What every graph's `slots` is a beginning of: uploaded once, so its address never changes.
        self.slots = self.upload(np.arange(max(limits.prefix_capacity, limits.suffix_capacity), dtype=np.int64))

    def capacity(self, graph: str, needed: int) -> int:
        """C of a graph's caches, which is compiled into its engine.

        Raises:
            InputError: `needed` slots are more.
        """
        limits = self.target.manifest.limits
        fixed = limits.suffix_capacity if graph == "suffix" else limits.prefix_capacity
        if needed > fixed:
            raise InputError(
                f"expected prompt and new tokens within the {fixed} cache slots of the {graph} engine, found {needed}; "
                "ask for fewer, or build with a larger --capacity"
            )
        return fixed

    def empty(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """New memory with undefined content, for what is written before it is read."""
        owner = self.cuda.allocate(math.prod(shape) * ITEM_BYTES[dtype])
        return Tensor(owner.address, shape, dtype, owner)

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        tensor = self.empty(shape, dtype)
        self.cuda.zero(tensor.address, tensor.bytes)
        return tensor

    def upload(self, array: NDArray[Any]) -> Tensor:
        tensor = self.empty(array.shape, str(array.dtype))
        self.cuda.write(tensor.address, array)
        return tensor

    def take(self, value: Any, dtype: str) -> Tensor:
        """See `Device.take`. What lies on this GPU already is read there, or copied there if it is not aligned.

        Raises:
            InputError: it lies on another GPU, in another dtype, or with gaps.
        """
        kind, index = value.__dlpack_device__() if hasattr(value, "__dlpack_device__") else (dlpack.HOST, 0)
        if kind != dlpack.CUDA:
            return self.upload(as_numpy(value, dtype))
        if index != self.cuda.device:
            raise InputError(f"expected a tensor on GPU {self.cuda.device}, found one on GPU {index}; move it there")
        from cuda.core.utils import StridedMemoryView

        view = StridedMemoryView.from_dlpack(value, stream_ptr=self.cuda.handle)
        shape, found = tuple(view.shape), str(view.dtype)
        if found != dtype:
            raise InputError(f"expected a tensor of {dtype} on the GPU, found {found}; convert it there")
        steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        if view.strides is not None and any(
            size > 1 and stride != step for size, stride, step in zip(shape, view.strides, steps, strict=True)
        ):
            raise InputError("expected a contiguous tensor on the GPU, found one with gaps; make it contiguous")
        tensor = Tensor(view.ptr, shape, dtype, view)
        if not tensor.address % ALIGNMENT:
            return tensor
        aligned = self.empty(shape, dtype)
        self.cuda.copy_rows(tensor.address, tensor.bytes, aligned.address, tensor.bytes, tensor.bytes, 1)
        self.cuda.synchronize()  # `value` may go as soon as this returns
        return aligned

    def share(self, tensor: Tensor) -> dlpack.Exported:
        self.cuda.synchronize()
        return dlpack.Exported(tensor, dlpack.CUDA, self.cuda.device)

    def write(self, target: Tensor, array: NDArray[Any]) -> None:
        if target.shape != array.shape or target.dtype != str(array.dtype):
            raise FastVError(
                f"expected {target.dtype}{list(target.shape)} to write, found {array.dtype}{list(array.shape)}"
            )
        self.cuda.write(target.address, array)

    def download(self, tensor: Tensor) -> NDArray[Any]:
        array = np.empty(tensor.shape, numpy_dtype(tensor.dtype))
        self.cuda.read(tensor.address, array)
        return array

    def copy_slots(self, source: Tensor, target: Tensor, slots: int) -> None:
        batch, heads, _, size = source.shape
        step = size * ITEM_BYTES[source.dtype]
        pitches = source.shape[2] * step, target.shape[2] * step
        self.cuda.copy_rows(source.address, pitches[0], target.address, pitches[1], slots * step, batch * heads)

    def session(self, name: str) -> TrtSession:
        return TrtSession(self, name)
