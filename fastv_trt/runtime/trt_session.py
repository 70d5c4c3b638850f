"""One TensorRT or TensorRT-RTX engine behind the session protocol."""

from __future__ import annotations

import hashlib
import math
import mmap
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastv_trt import nvidia
from fastv_trt.errors import BundleError, FastVError, InputError
from fastv_trt.nvidia import last_error, listening, logger
from fastv_trt.runtime.cuda import ALIGNMENT, Graph
from fastv_trt.runtime.tensor import ITEM_BYTES, Tensor
from fastv_trt.targets import EngineRecord, ProfileRecord

if TYPE_CHECKING:
    from fastv_trt.runtime.trt import TrtDevice

BUCKET = 64
"""Decode rounds T up to a multiple of it, so that one CUDA graph serves that many steps. The slots beyond the
newest token are masked, and their zeros cost little."""

MAX_GRAPHS = 64


@dataclass
class TrtSession:
    """One engine: a context per profile, and a CUDA graph per decode profile, bucket and set of addresses.

    What a run returns without having been given a place for lies in memory that the next run overwrites.

    Attributes:
        no_graphs_because: why decode steps are not captured, or None; the numbers are the same either way.
    """

    device: TrtDevice
    name: str
    no_graphs_because: str | None = field(init=False, default=None)
    _record: EngineRecord = field(init=False, repr=False)
    _engine: Any = field(init=False, repr=False)
    _contexts: list[Any] = field(init=False, repr=False)
    _own: dict[str, Tensor] = field(init=False, default_factory=dict, repr=False)
    _graphs: OrderedDict[Any, Graph | None] = field(init=False, default_factory=OrderedDict, repr=False)

    def __post_init__(self) -> None:
        path = self.device.target.plan_path(self.name)
        self._record = self.device.target.manifest.engines[self.name]
        trt = self.device.trt
        with listening(trt) as lines, path.open("rb") as file:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
                if hashlib.sha256(plan).hexdigest() != self._record.plan.sha256:
                    raise BundleError(f"expected {path} as it was built, found it altered; build it again")
                runtime = trt.Runtime(logger(trt))
                runtime.engine_host_code_allowed = False  # a plan may carry code for the CPU; ours has none
                self._engine = runtime.deserialize_cuda_engine(plan)
            if self._engine is None:
                raise FastVError(f"expected {path.name} to load on this GPU, found: {last_error(lines)}")
            self._check_engine()
            self._contexts = [self._context(index, lines) for index in range(len(self._record.profiles))]
        if not self.device.cuda_graphs:
            self.no_graphs_because = "they are switched off"

    def run(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        bound = self._inputs(tensors)
        index, profile = self._profile(bound)
        if profile.name != "decode" or not all(record.name in tensors for record in self._record.outputs):
            outputs = self._bind(index, bound, tensors)
            self._enqueue(index)
            self.device.cuda.synchronize()  # so that whoever measures a prefill measures all of it
            return outputs
        if "slots" in bound:
            bound["slots"] = self._bucket(bound["slots"], profile)
        return self._decode(index, bound, tensors)

    def _decode(self, index: int, bound: dict[str, Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """A step whose every tensor has a place: the first of its kind runs plainly, the second is captured as a CUDA
        graph, later ones launch it."""
        outputs = {record.name: tensors[record.name] for record in self._record.outputs}
        key = (index, tuple((name, tensor.address, tensor.shape) for name, tensor in (bound | outputs).items()))
        graph = self._graphs.get(key)
        if graph is None:
            self._bind(index, bound, tensors)
            if key in self._graphs and self.no_graphs_because is None:
                graph = self._capture(index)
            if self.no_graphs_because is None:
                self._remember(key, graph)
        else:
            self._graphs.move_to_end(key)
        if graph is None:
            self._enqueue(index)
        else:
            graph.launch()
        return outputs

    def _bind(self, index: int, bound: dict[str, Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Set every shape and address of a context; returns the outputs."""
        self._bind_shapes(index, bound)
        outputs = {record.name: self._output(index, record.name, tensors) for record in self._record.outputs}
        places = bound | outputs
        for name, source in self._record.aliases.items():
            if places[name].address != places[source].address:
                raise FastVError(f"expected {name} in the memory of {source}, found another place")
        for name, tensor in places.items():
            if tensor.address % ALIGNMENT:
                raise FastVError(f"expected {name} at a multiple of {ALIGNMENT} bytes, found {tensor.address:#x}")
            self._contexts[index].set_tensor_address(name, tensor.address)
        return outputs

    def _inputs(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        bound = {}
        for record in self._record.inputs:
            if record.name not in tensors:
                raise FastVError(f"expected {record.name} for {self.name}, found {', '.join(tensors)}")
            tensor = tensors[record.name]
            if tensor.dtype != record.dtype:
                raise InputError(f"expected {record.name} as {record.dtype} for {self.name}, found {tensor.dtype}")
            bound[record.name] = tensor
        return bound

    def _profile(self, bound: dict[str, Tensor]) -> tuple[int, ProfileRecord]:
        """The last profile that admits the shapes: decode before prefill.

        Raises:
            InputError: none does; the message says how the nearest one is exceeded.
        """
        shapes = {name: tensor.shape for name, tensor in bound.items()}
        for index in reversed(range(len(self._record.profiles))):
            if self._record.profiles[index].admits(shapes):
                return index, self._record.profiles[index]
        nearest = min(self._record.profiles, key=lambda profile: profile.excess(shapes))
        found = "; ".join(nearest.refusals(shapes)[:3])
        raise InputError(
            f"expected a request within the {self.name} engine's {nearest.name} profile, found that {found}; "
            "build with larger --max-prompt, --max-batch, --max-images or --kept"
        )

    def _bucket(self, slots: Tensor, profile: ProfileRecord) -> Tensor:
        most = profile.shapes["slots"].max[0]
        length = min(-(-slots.shape[0] // BUCKET) * BUCKET, most)
        shared = self.device.slots
        return Tensor(shared.address, (length,), shared.dtype, shared.owner)

    def _bind_shapes(self, index: int, bound: dict[str, Tensor]) -> None:
        context = self._contexts[index]
        for name, tensor in bound.items():
            if not context.set_input_shape(name, tensor.shape):
                raise FastVError(f"expected {self.name} to take {name} of {list(tensor.shape)}, found that it refuses")
        missing = context.infer_shapes()
        if missing:
            raise FastVError(f"expected every shape of {self.name} to be known, found {', '.join(missing)} unknown")

    def _output(self, index: int, name: str, tensors: dict[str, Tensor]) -> Tensor:
        """The caller's place for an output, or this session's own, which only ever grows."""
        shape = tuple(int(size) for size in self._contexts[index].get_tensor_shape(name))
        dtype = next(record.dtype for record in self._record.outputs if record.name == name)
        given = tensors.get(name)
        if given is not None:
            if (given.shape, given.dtype) != (shape, dtype):
                raise FastVError(f"expected a place of {dtype}{list(shape)} for {name}, found {list(given.shape)}")
            return given
        own = self._own.get(name)
        if own is None or own.owner.size < math.prod(shape) * ITEM_BYTES[dtype]:
            own = self._own[name] = self.device.empty(shape, dtype)
        return Tensor(own.address, shape, dtype, own.owner)

    def _remember(self, key: Any, graph: Graph | None) -> None:
        self._graphs[key] = graph
        self._graphs.move_to_end(key)
        while len(self._graphs) > MAX_GRAPHS:
            self.device.cuda.synchronize()  # the oldest may still run
            self._graphs.popitem(last=False)

    def _capture(self, index: int) -> Graph | None:
        """Capture one execution; on failure, say why and go on without."""
        cuda, context = self.device.cuda, self._contexts[index]
        if not context.is_stream_capturable(cuda.handle):
            return None  # RTX still compiles kernels for these shapes: try again at the next step
        cuda.begin_capture()
        try:
            accepted = context.execute_async_v3(cuda.handle)
            graph = cuda.end_capture()
        except FastVError as error:
            self.no_graphs_because = str(error)
            return None
        if not accepted:
            self.no_graphs_because = f"{self.name} cannot be captured"
            return None
        return graph

    def _enqueue(self, index: int) -> None:
        with listening(self.device.trt) as lines:
            if not self._contexts[index].execute_async_v3(self.device.cuda.handle):
                raise FastVError(f"expected {self.name} to run, found: {last_error(lines)}")

    def _context(self, index: int, lines: list[nvidia.Line]) -> Any:
        """A context of its own for each profile: a captured graph must not see the profile change."""
        context = self._engine.create_execution_context()
        if context is None:
            raise FastVError(f"expected GPU memory for the activations of {self.name}, found: {last_error(lines)}")
        if not context.set_optimization_profile_async(index, self.device.cuda.handle):
            raise FastVError(f"expected profile {index} of {self.name} to be set, found: {last_error(lines)}")
        self.device.cuda.synchronize()
        return context

    def _check_engine(self) -> None:
        """Compare the engine with its record, which everything else trusts."""
        engine, record = self._engine, self._record
        names = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
        wanted = {tensor.name for tensor in (*record.inputs, *record.outputs)}
        aliases = {t.name: engine.get_aliased_input_tensor(t.name) for t in record.outputs}
        on_host = [n for n in names if engine.get_tensor_location(n) != self.device.trt.TensorLocation.DEVICE]
        same = (
            names == wanted
            and engine.num_optimization_profiles == len(record.profiles)
            and {name: source for name, source in aliases.items() if source} == record.aliases
        )
        if not same or on_host:
            raise FastVError(
                f"expected the plan of {self.name} as engine.json describes it, found another; build again"
            )
