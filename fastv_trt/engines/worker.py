"""Compiling in a process of its own, which does the same thing every time.

Why: TensorRT-RTX numbers the dynamic dimensions of a plan in an order that depends on where its objects lie in
memory and on which of its threads came first, so two plain builds of one graph differ. Started by `steady.py`, they
are identical (docs/engines.md, "The same build again", has the figures and the limits). A process of its own also
gives back the compiler's memory, and keeps a crash of its C++ code out of the caller.

The parent writes one job as JSON to the child's stdin; the child answers with marked lines on stdout, because
the compiler prints there too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fastv_trt import errors, nvidia
from fastv_trt.engines import steady
from fastv_trt.engines.compile import compile_graph
from fastv_trt.engines.graph import Graph
from fastv_trt.errors import FastVError
from fastv_trt.targets import IoRecord, ProfileRecord

_MARK = "@@fastv "
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "SYSTEMROOT")


class Task(BaseModel):
    """One graph to compile, and where its plan goes."""

    graph: str
    source: Path
    capacity: int
    decomposable: bool
    profiles: tuple[ProfileRecord, ...]
    plan: Path


class Job(BaseModel):
    """All graphs of one target, compiled one after the other."""

    backend: str
    compute: tuple[str, ...]
    tasks: tuple[Task, ...]


class Result(BaseModel):
    """Inputs and outputs of one compiled graph."""

    graph: str
    inputs: tuple[IoRecord, ...]
    outputs: tuple[IoRecord, ...]


class Results(BaseModel):
    """What a job gave. `steady`: whether the system allowed all that `steady.py` asks for."""

    steady: bool
    engines: tuple[Result, ...]


def compile_all(job: Job, folder: Path, on_phase: Callable[[str, str, float], None]) -> Results:
    """Compile every graph of a job in a child process.

    Args:
        job: its paths are relative to `folder`, so that neither the bundle's place nor the target's name, whose
            lengths would shift the compiler's memory, reach the child.
        folder: where the plans go.
        on_phase: called with the graph, the compiler's phase and the share of this graph that is done.

    Raises:
        FastVError: of the kind that the child raised; or the child died.
        OSError: a plan could not be written.
    """
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # a module that is compiled first leaves another heap behind
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    child = subprocess.Popen(
        [sys.executable, "-P", steady.__file__, __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=folder,
        text=True,
        errors="replace",
    )
    assert child.stdin is not None and child.stdout is not None
    noise: list[str] = []
    try:
        with suppress(BrokenPipeError):
            child.stdin.write(job.model_dump_json())
            child.stdin.close()
        for line in child.stdout:
            if not line.startswith(_MARK):
                noise.append(line.strip())
                continue
            message = json.loads(line.removeprefix(_MARK))
            if "phase" in message:
                on_phase(message["graph"], message["phase"], message["share"])
            elif "results" in message:
                return Results.model_validate(message["results"])
            else:
                raise _raised(message)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    raise FastVError(f"expected the compiler to finish, found that it {_end(child.returncode)}: {_tail(noise)}")


def _raised(message: dict[str, Any]) -> BaseException:
    if message["error"] == "OSError":
        return OSError(message["number"], message["text"])
    kind: type[FastVError] = getattr(errors, message["error"], FastVError)
    return kind(message["text"])


def _end(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    cause = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"was ended by signal {-code}{cause}"


def _tail(noise: Sequence[str]) -> str:
    return " ".join(line for line in noise[-3:] if line)[-300:] or "it said nothing"


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(f"\n{_MARK}{json.dumps(message)}\n")
    sys.stdout.flush()


def _run(job: Job) -> tuple[Result, ...]:
    library = nvidia.library(job.backend)
    done = []
    for task in job.tasks:

        def report(phase: str, share: float, graph: str = task.graph) -> bool:
            _say({"graph": graph, "phase": phase, "share": share})
            return True

        graph = Graph.read(task.source, task.graph).with_capacity(task.capacity)
        graph = graph.decomposable() if task.decomposable else graph
        compiled = compile_graph(library, graph, task.profiles, job.compute, report)
        with task.plan.open("wb") as file:
            file.write(memoryview(compiled.plan))
        done.append(Result(graph=task.graph, inputs=compiled.inputs, outputs=compiled.outputs))
        del compiled
    return tuple(done)


def main() -> None:
    """The child: read a job from stdin, answer on stdout."""
    try:
        engines = _run(Job.model_validate_json(sys.stdin.read()))
    except FastVError as error:
        _say({"error": type(error).__name__, "text": str(error)})
    except OSError as error:
        _say({"error": "OSError", "number": error.errno, "text": error.strerror or str(error)})
    else:
        _say({"results": Results(steady=steady.is_steady(), engines=engines).model_dump(mode="json")})


if __name__ == "__main__":
    main()
