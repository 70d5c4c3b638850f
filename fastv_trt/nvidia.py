"""NVIDIA's two inference libraries behind one name, and the GPUs of this machine.

TensorRT 11 and TensorRT-RTX have nearly the same Python API, so every other file takes the module as a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from fastv_trt.errors import InputError, UnavailableError

MODULES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
_INSTALL = {
    "tensorrt": "pip install 'fastv-trt[tensorrt]' (its builder needs an NVIDIA GPU), or use tensorrt-rtx",
    "tensorrt-rtx": "pip install 'fastv-trt[tensorrt-rtx]'",
}


@dataclass(frozen=True)
class Library:
    """One of the two libraries, loaded.

    Attributes:
        backend: "tensorrt" or "tensorrt-rtx".
        trt: the module.
    """

    backend: str
    trt: Any

    @property
    def version(self) -> str:
        return str(self.trt.__version__)

    @property
    def ahead_of_time(self) -> tuple[str, ...]:
        """Compute capabilities that it compiles for without such a GPU, as "8.6"; empty for full TensorRT."""
        if self.backend != "tensorrt-rtx":
            return ()
        members = self.trt.ComputeCapability.__members__
        numbers = sorted(int(name[2:]) for name in members if name.startswith("SM"))
        return tuple(f"{number // 10}.{number % 10}" for number in numbers)


@dataclass(frozen=True)
class Gpu:
    """One GPU: its index, name, compute capability ("8.6") and memory in bytes."""

    index: int
    name: str
    compute: str
    memory: int


@dataclass(frozen=True)
class Gpus:
    """The GPUs that CUDA sees, or the reason why it sees none.

    Attributes:
        driver: highest CUDA version of the driver, as "13.0"; None without a driver.
    """

    devices: tuple[Gpu, ...]
    driver: str | None
    reason: str | None


@cache
def library(backend: str) -> Library:
    """Load a library.

    Raises:
        InputError: unknown backend.
        UnavailableError: it is not installed, or does not load.
    """
    if backend not in MODULES:
        raise InputError(f"expected a backend of {', '.join(MODULES)}, found {backend!r}")
    try:
        return Library(backend, import_module(MODULES[backend]))
    except ImportError as error:
        found = f"expected the Python module {MODULES[backend]}, found: {error}"
        raise UnavailableError(f"{found}; {_INSTALL[backend]}") from error
    except (OSError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UnavailableError(f"expected {MODULES[backend]} to load its libraries, found: {reason}") from error


def cuda() -> Any:
    """The CUDA runtime's Python bindings.

    Raises:
        UnavailableError: cuda-python is not installed.
    """
    try:
        return import_module("cuda.bindings.runtime")
    except ImportError as error:
        found = f"expected cuda-python for device memory, found: {error}"
        raise UnavailableError(f"{found}; pip install cuda-python") from error


def gpus(runtime: Any | None = None) -> Gpus:
    """Ask CUDA what is there. Never raises: a machine without a GPU is an answer.

    Args:
        runtime: `cuda.bindings.runtime`; loaded by default.
    """
    try:
        runtime = runtime or cuda()
    except UnavailableError as error:
        return Gpus((), None, str(error))
    status, count = runtime.cudaGetDeviceCount()
    if int(status) != 0:
        return Gpus((), None, f"CUDA answers {status.name}: no NVIDIA driver, or one that is too old")
    found = []
    for index in range(count):
        status, properties = runtime.cudaGetDeviceProperties(index)
        if int(status) == 0:
            name = properties.name.decode() if isinstance(properties.name, bytes) else str(properties.name)
            compute = f"{properties.major}.{properties.minor}"
            found.append(Gpu(index, name, compute, int(properties.totalGlobalMem)))
    _, number = runtime.cudaDriverGetVersion()
    return Gpus(tuple(found), f"{number // 1000}.{number % 1000 // 10}", None if found else "CUDA lists no GPU")


@dataclass(frozen=True)
class Line:
    """One line that the library logged: "error", "warning" or "info", and its text."""

    severity: str
    text: str


@cache
def logger(trt: Any) -> Any:
    """The one logger of a library: it keeps the first that it is given, so there can be no other."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.lines: list[Line] | None = None

        def log(self, severity: Any, text: str) -> None:
            if self.lines is None:
                return
            kinds = trt.ILogger.Severity
            if severity in (kinds.ERROR, kinds.INTERNAL_ERROR):
                self.lines.append(Line("error", text))
            else:
                self.lines.append(Line("warning" if severity == kinds.WARNING else "info", text))

    return Logger()


@contextmanager
def listening(trt: Any) -> Iterator[list[Line]]:
    """Collect what the library logs meanwhile."""
    one = logger(trt)
    before, one.lines = one.lines, []
    try:
        yield one.lines
    finally:
        one.lines = before


def last_error(lines: list[Line]) -> str:
    """The most telling line of a failure: the first error, on one line, at most 300 characters."""
    errors = [line.text for line in lines if line.severity == "error"] or ["no reason was logged"]
    return " ".join(errors[0].split())[:300]
