"""How far every quantized weight's result is from the floating-point one, on inputs of the real chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from fastv_trt.calibration.quantize.feeds import Feed, rms
from fastv_trt.calibration.quantize.layers import Linear


@dataclass(frozen=True)
class LayerError:
    """One weight.

    Attributes:
        label: as in `layers.Linear`.
        error: RMS of the difference of its results over RMS of the floating-point ones, worst of the feeds. It holds
            what earlier layers add, since both graphs start from the same inputs.
    """

    label: str
    error: float


def layer_errors(plain: Path, quantized: Path, linears: Sequence[Linear], feeds: Sequence[Feed]) -> list[LayerError]:
    """Run both graphs on the same feeds and compare every weight's result, in the order of the graph."""
    worst = {linear.output: 0.0 for linear in linears}
    sessions = [session_with(path, list(worst)) for path in (plain, quantized)]
    for feed in feeds:
        want, got = [session.run(list(worst), feed) for session in sessions]
        for name, a, b in zip(worst, want, got, strict=True):
            worst[name] = max(worst[name], _relative(a, b))
    return [LayerError(linear.label, worst[linear.output]) for linear in linears]


def _relative(reference: NDArray, other: NDArray) -> float:  # type: ignore[type-arg]
    return rms(other.astype("float32") - reference.astype("float32")) / max(rms(reference), 1e-12)


def session_with(path: Path, outputs: Sequence[str]) -> onnxruntime.InferenceSession:
    """The graph at `path` with more outputs; its weights are read where they lie."""
    model = onnx.load(str(path), load_external_data=False)
    present = {value.name for value in model.graph.output}
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in outputs if name not in present)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent.resolve()))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
