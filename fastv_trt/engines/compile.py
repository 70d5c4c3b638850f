"""One graph through NVIDIA's parser and builder. The library is a value, so both take the same path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastv_trt.engines.graph import Graph
from fastv_trt.engines.lint import Finding
from fastv_trt.errors import FastVError, InputError
from fastv_trt.nvidia import Library, Line, last_error, listening, logger
from fastv_trt.targets import IoRecord, ProfileRecord

FATAL_LINES = {
    "Unused Input": "the parser drops an input, so its values would have no effect",
    "not self-consistent": "a profile has sizes that contradict each other",
}
"""What the library only logs although the engine would be wrong."""

OnPhase = Callable[[str, float], bool]
"""Called with a phase's name and the share that is done of the whole; returns false to stop the build."""


@dataclass(frozen=True)
class Compiled:
    """A plan, still in the library's memory, and what engine.json says of its inputs and outputs."""

    plan: Any
    inputs: tuple[IoRecord, ...]
    outputs: tuple[IoRecord, ...]


def parse_findings(library: Library, graph: Graph) -> list[Finding]:
    """What the library's own parser has against a graph: its errors, and log lines that should be errors."""
    with listening(library.trt) as lines:
        _, network, parser = _parse(library, graph)
        found = _parser_errors(graph, parser)
        found.extend(_fatal(graph, lines))
        if not found and network.num_outputs == 0:
            found.append(Finding(graph.name, "the whole graph", last_error(lines), "export it again"))
    return found


def compile_graph(
    library: Library,
    graph: Graph,
    profiles: Sequence[ProfileRecord],
    compute: Sequence[str],
    on_phase: OnPhase,
) -> Compiled:
    """Compile one graph.

    Args:
        graph: with a static capacity.
        profiles: in the order of their index.
        compute: compute capabilities to compile for, as "8.6"; empty for the GPU of this machine.

    Raises:
        InputError: the parser refuses the graph.
        FastVError: the builder fails, or logs that a profile contradicts itself.
    """
    trt = library.trt
    with listening(trt) as lines:
        builder, network, parser = _parse(library, graph)
        found = _parser_errors(graph, parser) + _fatal(graph, lines)
        if found:
            raise InputError(f"expected a graph that {library.backend} parses, found: {found[0]}")
        config = builder.create_builder_config()
        _set_compute(trt, config, compute)
        for record in profiles:
            profile = builder.create_optimization_profile()
            for name, limits in record.shapes.items():
                profile.set_shape(name, limits.min, limits.opt, limits.max)
            if config.add_optimization_profile(profile) < 0:
                raise FastVError(f"expected a valid {record.name} profile of {graph.name}, found: {last_error(lines)}")
        monitor = _monitor(trt, on_phase)
        config.progress_monitor = monitor
        plan = builder.build_serialized_network(network, config)
        if monitor.interruption is not None:
            raise monitor.interruption
        fatal = _fatal(graph, lines)
        if plan is None or fatal:
            reason = fatal[0].reason if fatal else last_error(lines)
            raise FastVError(f"expected {library.backend} to compile {graph.name}, found: {reason}")
        # Read before the builder goes: tensors belong to it.
        return Compiled(
            plan,
            tuple(_io(trt, network.get_input(i), graph.inputs) for i in range(network.num_inputs)),
            tuple(_io(trt, network.get_output(i), graph.outputs) for i in range(network.num_outputs)),
        )


def _parse(library: Library, graph: Graph) -> tuple[Any, Any, Any]:
    trt = library.trt
    builder = trt.Builder(logger(trt))
    builder.max_threads = 1  # threads that race number a plan differently each time
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger(trt))
    # The path is where the weights are looked for; they are mapped, not read.
    parser.parse(graph.model.SerializeToString(), str(graph.path))
    return builder, network, parser


def _parser_errors(graph: Graph, parser: Any) -> list[Finding]:
    found = []
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        node = f"{error.node_name() or 'the whole graph'} ({error.node_operator() or 'graph'})"
        reason = " ".join(error.desc().split())[:300]
        found.append(Finding(graph.name, node, reason, "export it again without that operator or attribute"))
    return found


def _fatal(graph: Graph, lines: Sequence[Line]) -> list[Finding]:
    return [
        Finding(graph.name, "the whole graph", f"{reason} ({' '.join(line.text.split())[:200]})", "export it again")
        for line in lines
        for text, reason in FATAL_LINES.items()
        if text in line.text
    ]


def _set_compute(trt: Any, config: Any, compute: Sequence[str]) -> None:
    if not compute:
        return
    config.num_compute_capabilities = len(compute)
    for index, number in enumerate(compute):
        member = trt.ComputeCapability.__members__[f"SM{number.replace('.', '')}"]
        if not config.set_compute_capability(member, index):
            raise FastVError(f"expected the builder to take compute capability {number}, found that it refuses")


def _io(trt: Any, tensor: Any, axes: dict[str, tuple[int | str, ...]]) -> IoRecord:
    return IoRecord(
        name=tensor.name,
        dtype=dtype_name(trt, tensor.dtype),
        shape=tuple(int(size) for size in tensor.shape),
        axes=axes[tensor.name],
        shape_tensor=bool(tensor.is_shape_tensor),
    )


def dtype_name(trt: Any, dtype: Any) -> str:
    """A library's dtype as the bundle writes it."""
    kinds = trt.DataType
    names = {
        kinds.FLOAT: "float32",
        kinds.HALF: "float16",
        kinds.BF16: "bfloat16",
        kinds.INT64: "int64",
        kinds.INT32: "int32",
        kinds.INT8: "int8",
        kinds.BOOL: "bool",
    }
    return names.get(dtype, str(dtype))


def _monitor(trt: Any, on_phase: OnPhase) -> Any:
    """A progress monitor that reports the share of the outermost phase.

    Nothing may be raised into the library's C++ code, so what `on_phase` raises is kept in `interruption`.
    """

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.phases: list[tuple[str, int, int]] = []
            self.share = 0.0
            self.interruption: BaseException | None = None

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            self.phases.append((name, 0, steps))
            self._report()

        def phase_finish(self, name: str) -> None:
            while self.phases and self.phases.pop()[0] != name:
                pass

        def step_complete(self, name: str, step: int) -> bool:
            self.phases = [(n, step + 1 if n == name else done, steps) for n, done, steps in self.phases]
            return self._report()

        def _report(self) -> bool:
            share, width = 0.0, 1.0
            for _, done, steps in self.phases:
                share += width * done / max(steps, 1)
                width /= max(steps, 1)
            self.share = max(self.share, min(share, 1.0))  # phases may nest deeper late; a bar only goes forward
            try:
                going = on_phase(self.phases[-1][0] if self.phases else "", self.share)
            except BaseException as error:
                self.interruption = self.interruption or error
                return False
            if not going:
                self.interruption = self.interruption or FastVError("the build was stopped")
            return going

    return Monitor()
