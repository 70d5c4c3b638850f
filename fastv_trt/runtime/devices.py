"""Where a bundle runs, by the names that people type."""

from __future__ import annotations

from fastv_trt.bundle import Bundle
from fastv_trt.errors import InputError
from fastv_trt.limits import BuildLimits
from fastv_trt.runtime.tensor import Device

ANY_ENGINE = "auto"


def open_device(
    bundle: Bundle,
    name: str = "cpu",
    *,
    engine: str | None = None,
    threads: int | None = None,
    limits: BuildLimits | None = None,
) -> Device:
    """The device for a bundle: a provider of ONNX Runtime, or the bundle's own engines.

    Args:
        name: "cpu", "cuda", "tensorrt" or "tensorrt-rtx": a provider, which reads the bundle's ONNX graphs.
        engine: a target under engines/ instead, or "auto" for the first one that runs here.
        threads: of the CPU.
        limits: of the two TensorRT providers; engines have their own.

    Raises:
        InputError: unknown name or target, or both a provider and a target.
        UnavailableError: the provider or a GPU is not there. Nothing else is used instead.
    """
    if engine is None:
        from fastv_trt.runtime import ort

        return ort.device(bundle, name, threads, limits)
    if name != "cpu":
        raise InputError(f"expected --device or --engine, found {name} and {engine}; an engine runs on its own GPU")
    from fastv_trt.runtime import trt

    return trt.device(bundle, None if engine == ANY_ENGINE else engine)
