"""A bundle's graphs -> a target: one plan per graph and engine.json, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastv_trt import __version__, nvidia, targets
from fastv_trt.bundle import Bundle, FileRecord, refuse_existing, writing
from fastv_trt.engines.graph import Graph
from fastv_trt.engines.lint import check, grouped
from fastv_trt.engines.worker import Job, Result, Task, compile_all
from fastv_trt.errors import FastVError, InputError, UnavailableError
from fastv_trt.hashes import sha256
from fastv_trt.limits import BuildLimits, profiles
from fastv_trt.nvidia import Library
from fastv_trt.targets import EngineRecord, ProfileRecord, Target, TargetManifest

DEFAULT_COMPUTE = ("8.6", "8.9", "12.0")


@dataclass(frozen=True)
class Plan:
    """Everything about one engine that is decided before the compiler is called."""

    graph: Graph
    capacity: int
    profiles: tuple[ProfileRecord, ...]


def build(
    bundle: Bundle,
    backend: str = "tensorrt-rtx",
    *,
    limits: BuildLimits | None = None,
    compute: Sequence[str] | None = None,
    name: str | None = None,
    decomposable: bool = False,
    on_step: Callable[[str, int, int], None] = lambda step, done, total: None,
) -> Target:
    """Compile every graph of a bundle into engines/<name>.

    Args:
        backend: "tensorrt-rtx" compiles without a GPU; "tensorrt" compiles for the GPU of this machine.
        limits: what a request may be; by default derived from the model.
        compute: compute capabilities as "8.6"; by default 8.6, 8.9 and 12.0 for RTX.
        name: of the target's folder; by default made of backend and compute capabilities.
        decomposable: let attention without a fused kernel (fp32, odd head sizes) run as several kernels.
        on_step: called with what is being done, steps done and their number.

    Raises:
        InputError: limits, compute capability or a graph is not usable, or the target exists.
        UnavailableError: the library, or the GPU that it needs, is not there.
        FastVError: the compiler fails, or the disk is full. Nothing is left behind.
    """
    limits = limits or BuildLimits.of(bundle.manifest.model)
    limits.check(bundle.manifest.model)
    library = nvidia.library(backend)
    numbers = resolve_compute(library, compute)
    label = _target_name(name, backend, numbers)
    folder = bundle.path / targets.FOLDER / label
    refuse_existing(folder)
    plans = prepare(bundle, limits, numbers, decomposable)
    # The largest first: what the compiler keeps from one graph then lies in memory that it needed anyway.
    order = sorted(plans, key=lambda plan: _source_bytes(bundle, plan), reverse=True)

    folder.parent.mkdir(exist_ok=True)
    try:
        with writing(folder) as temporary:
            results = compile_all(
                _job(library, order, numbers, decomposable, temporary), temporary, _scaled(on_step, order)
            )
            done = {result.graph: result for result in results.engines}
            manifest = TargetManifest(
                schema_version=targets.SCHEMA_VERSION,
                created_by=f"fastv-trt {__version__}",
                backend=library.backend,  # type: ignore[arg-type]  # checked by nvidia.library
                library_version=library.version,
                compute_capabilities=numbers,
                precision=bundle.manifest.dtype,
                flags=("STRONGLY_TYPED", *(("decomposable",) if decomposable else ())),
                steady=results.steady,
                limits=limits.record(),
                engines={plan.graph.name: _record(bundle, plan, done[plan.graph.name], temporary) for plan in plans},
            )
            targets.write(temporary, manifest)
    except OSError as error:
        raise FastVError(
            f"expected to write engines into {folder}, found: {error.strerror}; nothing was left there"
        ) from error
    return Target(folder, manifest)


def prepare(
    bundle: Bundle, limits: BuildLimits, compute: Sequence[str] = (), decomposable: bool = False
) -> tuple[Plan, ...]:
    """Graphs with their static capacity and profiles, checked against each other and by every lint rule.

    Raises:
        InputError: one message with every problem and finding.
    """
    plans: list[Plan] = []
    problems: list[str] = []
    for name in bundle.manifest.graphs:
        graph = Graph.load(bundle, name).with_capacity(limits.capacity_of(name))
        graph = graph.decomposable() if decomposable else graph
        chosen = profiles(name, limits, bundle.manifest.vision.axes)
        found = [problem for profile in chosen for problem in profile.problems(name, graph.inputs)]
        problems.extend(found)
        problems.extend(grouped(check(graph, compute)))
        if not found:
            plans.append(
                Plan(graph, limits.capacity_of(name), tuple(profile.shapes(graph.inputs) for profile in chosen))
            )
    if problems:
        raise InputError("expected graphs that can be compiled, found: " + "; ".join(problems))
    return tuple(plans)


def resolve_compute(library: Library, compute: Sequence[str] | None) -> tuple[str, ...]:
    """The compute capabilities to compile for, ascending and each once.

    Raises:
        InputError: the library does not compile for one of them.
        UnavailableError: full TensorRT without a GPU.
    """
    offered = library.ahead_of_time
    if not offered:
        return _of_this_machine(library, compute)
    wanted = tuple(sorted(set(compute or DEFAULT_COMPUTE), key=lambda n: offered.index(n) if n in offered else -1))
    for number in wanted:
        if number not in offered:
            raise InputError(
                f"expected compute capabilities of {', '.join(offered)} for {library.backend}, found {number}; "
                "Orin (8.7), Hopper (9.0), B200 (10.0) and Thor (11.0) need --backend tensorrt on such a GPU"
            )
    return wanted


def _of_this_machine(library: Library, compute: Sequence[str] | None) -> tuple[str, ...]:
    found = nvidia.gpus()
    if not found.devices:
        raise UnavailableError(
            f"expected an NVIDIA GPU to build with {library.backend}, found none ({found.reason}); "
            "--backend tensorrt-rtx builds without one"
        )
    own = found.devices[0].compute
    if compute and set(compute) != {own}:
        raise InputError(
            f"expected compute capability {own}, this GPU's, for {library.backend}, found {', '.join(compute)}; "
            "--backend tensorrt-rtx compiles for other GPUs"
        )
    return (own,)


def _job(library: Library, plans: Sequence[Plan], compute: Sequence[str], decomposable: bool, folder: Path) -> Job:
    tasks = tuple(
        Task(
            graph=plan.graph.name,
            source=Path(os.path.relpath(plan.graph.path.resolve(), folder.resolve())),
            capacity=plan.capacity,
            decomposable=decomposable,
            profiles=plan.profiles,
            plan=Path(f"{plan.graph.name}.plan"),
        )
        for plan in plans
    )
    return Job(backend=library.backend, compute=tuple(compute) if library.ahead_of_time else (), tasks=tasks)


def _sources(bundle: Bundle, plan: Plan) -> tuple[FileRecord, ...]:
    """The files of the graph that a plan is compiled from."""
    path = bundle.manifest.graphs[plan.graph.name].path
    return tuple(file for file in bundle.manifest.files if file.path in (path, f"{path}.data"))


def _source_bytes(bundle: Bundle, plan: Plan) -> int:
    return sum(file.bytes for file in _sources(bundle, plan))


def _record(bundle: Bundle, plan: Plan, result: Result, folder: Path) -> EngineRecord:
    path = folder / f"{plan.graph.name}.plan"
    return EngineRecord(
        plan=FileRecord(path=path.name, bytes=path.stat().st_size, sha256=sha256(path)),
        source={file.path: file.sha256 for file in _sources(bundle, plan)},
        inputs=result.inputs,
        outputs=result.outputs,
        profiles=plan.profiles,
        aliases=plan.graph.aliases,
    )


def _scaled(on_step: Callable[[str, int, int], None], plans: Sequence[Plan]) -> Callable[[str, str, float], None]:
    """Progress of each graph as a share of all of them, in percent."""
    order = [plan.graph.name for plan in plans]

    def report(graph: str, phase: str, share: float) -> None:
        on_step(f"{graph}: {phase}", round(100 * (order.index(graph) + share)), 100 * len(order))

    return report


def _target_name(name: str | None, backend: str, compute: Sequence[str]) -> str:
    if name is None:
        short = {"tensorrt": "trt", "tensorrt-rtx": "rtx"}[backend]
        return "-".join((short, *(f"sm{number.replace('.', '')}" for number in compute)))
    if not name or name.startswith(".") or any(c in name for c in "/\\:") or not name.isprintable():
        raise InputError(f"expected a plain folder name for the target, found {name!r}")
    return name
