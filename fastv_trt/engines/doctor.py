"""What this machine can build and run, and which engines of a bundle fit it. Changes nothing, never fails."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from fastv_trt import __version__, nvidia, targets
from fastv_trt.bundle import Bundle
from fastv_trt.errors import BundleError, UnavailableError
from fastv_trt.nvidia import Gpus
from fastv_trt.targets import Target

PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnx", "torch", "transformers", "cuda-python", "polygraphy")


def machine() -> dict[str, Any]:
    """This machine as a JSON document: GPUs, driver, libraries, providers, and what can be compiled for."""
    import onnxruntime

    gpus = nvidia.gpus()
    libraries = {backend: _library(backend, gpus) for backend in nvidia.MODULES}
    return {
        "fastv_trt": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "gpus": [asdict(gpu) for gpu in gpus.devices],
        "no_gpu_because": gpus.reason,
        "driver_cuda": gpus.driver,
        "libraries": libraries,
        "onnxruntime_providers": list(onnxruntime.get_available_providers()),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
    }


def engines(bundle: Bundle, gpus: Gpus | None = None) -> list[dict[str, Any]]:
    """Every target of a bundle as a JSON document, with the reasons why it does not run here.

    Sizes are in bytes, limits in tokens, rows and cache slots. `runs_here` is true if `obstacles` is empty.
    A damaged target is listed with its error.

    Args:
        bundle: opened.
        gpus: of this machine; asked for by default.
    """
    gpus = nvidia.gpus() if gpus is None else gpus
    return [_describe(bundle, path, gpus) for path in targets.of(bundle)]


def _describe(bundle: Bundle, path: Path, gpus: Gpus) -> dict[str, Any]:
    try:
        target = Target.open(path)
    except BundleError as error:
        return {"target": path.name, "runs_here": False, "obstacles": [str(error)], "manifest": None}
    obstacles = target.obstacles(bundle, gpus, installed(target.manifest.backend))
    return {
        "target": target.name,
        "bytes": sum(engine.plan.bytes for engine in target.manifest.engines.values()),
        "runs_here": not obstacles,
        "obstacles": obstacles,
        "manifest": target.manifest.model_dump(mode="json"),
    }


def installed(backend: str) -> str | None:
    """Version of an installed library, or None."""
    try:
        return nvidia.library(backend).version
    except UnavailableError:
        return None


def _library(backend: str, gpus: Gpus) -> dict[str, Any]:
    try:
        library = nvidia.library(backend)
    except UnavailableError as error:
        return {"installed": False, "reason": str(error)}
    compute = library.ahead_of_time or tuple(sorted({gpu.compute for gpu in gpus.devices}))
    return {"installed": True, "version": library.version, "builds_for": list(compute), "runs": bool(gpus.devices)}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
