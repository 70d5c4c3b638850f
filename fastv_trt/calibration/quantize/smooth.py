"""Move large activations into weights before they are quantized: the model computes the same, and rounds better.

Where a channel of an activation is large and the weights that read it are small, the activation is divided by a factor
and the weights are multiplied by it. The division costs nothing where it can be folded into what makes the activation:
the weight of the RMSNorm before q, k, v and before gate, up; the columns of up before down.
Source: SmoothQuant (arXiv 2211.10438), equation 4, with its alpha.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, numpy_helper

from fastv_trt.calibration.quantize.errors import session_with
from fastv_trt.calibration.quantize.feeds import Feed
from fastv_trt.calibration.quantize.layers import Linear
from fastv_trt.calibration.quantize.schemes import save

SMALLEST = 1e-5


@dataclass(frozen=True)
class Seam:
    """One activation whose scale can be moved.

    Attributes:
        tensor: its name; the last axis are the channels.
        maker: initializer whose last axis makes those channels: a norm's weight [d], or a matrix [in, d].
        readers: weights [d, out] that alone read it.
    """

    tensor: str
    maker: str
    readers: tuple[str, ...]


def smooth(source: Path, target: Path, inside: Sequence[Linear], feeds: Iterable[Feed], alpha: float) -> int:
    """Write `source` with its scales moved; returns the number of seams.

    Args:
        inside: weights that will be quantized; a seam that others read too is left alone.
        feeds: inputs to collect the largest activations on.
        alpha: how much of the difficulty moves: 0 none of it, 1 all.
    """
    model = onnx.load(str(source))
    _part_norms(model)
    found = seams(model, {linear.weight for linear in inside})
    largest = _largest(source, [seam.tensor for seam in found], feeds)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for seam in found:
        matrices = [numpy_helper.to_array(tensors[name]) for name in seam.readers]
        rows = np.max([np.abs(matrix.astype(np.float32)).max(axis=1) for matrix in matrices], axis=0)
        factor = np.maximum(largest[seam.tensor], SMALLEST) ** alpha / np.maximum(rows, SMALLEST) ** (1 - alpha)
        _scale(tensors[seam.maker], 1.0 / factor)
        for name in seam.readers:
            _scale(tensors[name], factor[:, None])
    save(model, target)
    return len(found)


def seams(model: onnx.ModelProto, weights: set[str]) -> list[Seam]:
    """Activations whose scale can be moved without changing what the graph computes."""
    constants = {tensor.name for tensor in model.graph.initializer}
    outputs = {value.name for value in model.graph.output}
    readers: dict[str, list[NodeProto]] = {}
    makers: dict[str, NodeProto] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
        for name in node.output:
            makers[name] = node
    found = []
    for node in model.graph.node:
        maker = _maker(node, makers, readers, constants, outputs)
        uses = readers.get(node.output[0], []) if node.output else []
        quantized = [
            n for n in uses if n.op_type == "MatMul" and n.input[1] in weights and n.input[0] == node.output[0]
        ]
        if maker is None or not uses or len(quantized) != len(uses) or node.output[0] in outputs:
            continue
        found.append(Seam(node.output[0], maker, tuple(n.input[1] for n in quantized)))
    return found


def _part_norms(model: onnx.ModelProto) -> None:
    """Give every RMSNorm a weight of its own: the exporter lets equal ones share."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    taken: set[str] = set()
    for node in model.graph.node:
        if node.op_type != "RMSNormalization" or node.input[1] not in tensors:
            continue
        name = node.input[1]
        if name in taken:
            copy = model.graph.initializer.add()
            copy.CopyFrom(tensors[name])
            copy.name = node.input[1] = f"{name}_of_{node.output[0]}"
        taken.add(name)


def _maker(
    node: NodeProto,
    makers: dict[str, NodeProto],
    readers: dict[str, list[NodeProto]],
    constants: set[str],
    outputs: set[str],
) -> str | None:
    """The initializer that a seam after `node` would be folded into; None if there is none of its own."""
    if node.op_type == "RMSNormalization":
        name = str(node.input[1])
        return name if name in constants and len(readers[name]) == 1 else None
    if node.op_type != "Mul":
        return None
    for name in node.input:
        before = makers.get(name)
        alone = len(readers[name]) == 1 and name not in outputs
        if before is not None and before.op_type == "MatMul" and before.input[1] in constants and alone:
            weight = str(before.input[1])
            return weight if len(readers[weight]) == 1 else None
    return None


def _largest(path: Path, names: Sequence[str], feeds: Iterable[Feed]) -> dict[str, NDArray[Any]]:
    session = session_with(path, names)
    largest: dict[str, NDArray[Any]] = {}
    for feed in feeds:
        for name, values in zip(names, session.run(list(names), feed), strict=True):
            own = np.abs(values.astype(np.float32)).reshape(-1, values.shape[-1]).max(axis=0)
            largest[name] = np.maximum(largest.get(name, own), own)
    return largest


def _scale(tensor: onnx.TensorProto, factor: NDArray[Any]) -> None:
    old = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array((old.astype(np.float32) * factor).astype(old.dtype), tensor.name))
