"""fastv-trt: prune a vision-language model's image tokens inside its decoder, and deploy it.

`import fastv_trt` loads none of torch, transformers or onnxruntime: the names below are imported when
they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Bundle": "fastv_trt.bundle",
    "Pruning": "fastv_trt.pruning",
    "Runtime": "fastv_trt.runtime",
    "FastVError": "fastv_trt.errors",
    "InputError": "fastv_trt.errors",
}
__all__ = ["Bundle", "FastVError", "InputError", "Pruning", "Runtime", "__version__"]

if TYPE_CHECKING:
    from fastv_trt.bundle import Bundle
    from fastv_trt.errors import FastVError, InputError
    from fastv_trt.pruning import Pruning
    from fastv_trt.runtime import Runtime


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'fastv_trt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
