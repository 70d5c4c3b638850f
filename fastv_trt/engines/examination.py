"""What `fastv-trt check` says: every lint rule over a bundle's graphs, then the installed library's own parser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastv_trt import nvidia
from fastv_trt.bundle import Bundle
from fastv_trt.engines.compile import parse_findings
from fastv_trt.engines.graph import Graph
from fastv_trt.engines.lint import Finding, check, grouped
from fastv_trt.errors import UnavailableError
from fastv_trt.limits import BuildLimits, profiles
from fastv_trt.nvidia import Library


@dataclass(frozen=True)
class Report:
    """Findings over all graphs.

    Attributes:
        findings: reasons against compiling, one per node.
        parser: library that parsed the graphs too, with its version; None if only the rules were applied.
        notes: what was not checked.
    """

    findings: tuple[Finding, ...]
    parser: str | None
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def lines(self) -> list[str]:
        """One line per graph and reason."""
        return grouped(self.findings)


def examine(
    bundle: Bundle,
    limits: BuildLimits,
    compute: Sequence[str] | None = None,
    backend: str | None = None,
    decomposable: bool = False,
) -> Report:
    """Find everything that is against compiling a bundle. Nothing is compiled.

    Args:
        compute: compute capabilities that dtypes are checked against.
        backend: whose parser to ask; by default whichever is installed, RTX first.

    Raises:
        InputError: unknown backend.
        UnavailableError: the backend was asked for by name and is not installed.
    """
    library, notes = _library(backend)
    findings: list[Finding] = []
    for name in bundle.manifest.graphs:
        graph = Graph.load(bundle, name).with_capacity(limits.capacity_of(name))
        graph = graph.decomposable() if decomposable else graph
        for profile in profiles(name, limits, bundle.manifest.vision.axes):
            for problem in profile.problems(name, graph.inputs):
                findings.append(Finding(name, f"profile {profile.name}", problem, "change the limits or export again"))
        findings.extend(check(graph, compute or ()))
        if library is not None:
            findings.extend(parse_findings(library, graph))
    parser = None if library is None else f"{library.backend} {library.version}"
    return Report(tuple(findings), parser, notes)


def _library(backend: str | None) -> tuple[Library | None, tuple[str, ...]]:
    if backend is not None:
        return nvidia.library(backend), ()
    for name in ("tensorrt-rtx", "tensorrt"):
        try:
            return nvidia.library(name), ()
        except UnavailableError:
            continue
    return None, ("neither tensorrt-rtx nor tensorrt is installed, so no parser was asked; the rules need none",)
