"""The token table in 4 bits: rows are looked up as they are stored and unpacked after, with standard operators.

A DequantizeLinear in front of the Gather would unpack the whole table for a few rows, and ONNX Runtime would do so once
and keep the result. So eight numbers share an int32 word: number j of word w belongs to column j*(d/8) + w, and the
words of one token become its row by arithmetic that every backend has (bits shift in neither TensorRT nor ONNX's
signed types):

    number j = (word mod 16^(j+1) - word mod 16^j) / 16^j,   j < 7, stored with 8 added
    number 7 = (word - word mod 16^7) / 16^7,                stored as it is, with the sign

As in the other INT4 weights, `block` neighbours share a scale, the one of largest magnitude being -8.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper

LANES = 8
SMALLEST_BLOCK = 16
_ROWS = 4096  # at a time: what is in memory beside the table is small


def block_of(hidden_size: int, block: int) -> int | None:
    """Columns that share a scale: `block`, or the largest part of it that divides a row; None where a row cannot."""
    own = math.gcd(hidden_size, block)
    return own if hidden_size % LANES == 0 and own >= SMALLEST_BLOCK else None


def pack(table: NDArray[Any], block: int) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Words [V, d/8] and scales [V, d/block], in the table's dtype, of a table [V, d]."""
    rows, columns = table.shape
    words = np.empty((rows, columns // LANES), np.int32)
    scales = np.empty((rows, columns // block), table.dtype)
    for first in range(0, rows, _ROWS):
        part = table[first : first + _ROWS].astype(np.float32).reshape(-1, columns // block, block)
        furthest = np.take_along_axis(part, np.abs(part).argmax(axis=2, keepdims=True), axis=2)
        own = (furthest[..., 0] / -8.0).astype(table.dtype)
        own[own == 0] = 1
        scales[first : first + _ROWS] = own
        numbers = np.clip(np.rint(part / own[..., None].astype(np.float32)), -8, 7).astype(np.int32)
        lanes = numbers.reshape(-1, LANES, columns // LANES)
        word = np.zeros((lanes.shape[0], columns // LANES), np.int64)
        for lane in range(LANES):
            word += (lanes[:, lane].astype(np.int64) + (8 if lane < LANES - 1 else 0)) << (4 * lane)
        words[first : first + _ROWS] = word.astype(np.int32)
    return words, scales


def replace(model: onnx.ModelProto, table: str, gather: str, block: int) -> None:
    """Put the packed form in place of the initializer `table` and of the node `gather` that reads it."""
    graph = model.graph
    tensor = next(t for t in graph.initializer if t.name == table)
    index, node = next((i, n) for i, n in enumerate(graph.node) if n.name == gather)
    values = numpy_helper.to_array(tensor)
    own = block_of(values.shape[1], block)
    if own is None:
        raise ValueError(f"rows of {values.shape[1]} columns are not made of blocks")
    block = own
    words, scales = pack(values, block)
    kind, columns = tensor.data_type, values.shape[1]
    graph.initializer.remove(tensor)
    powers = np.array([16**lane for lane in range(LANES)], np.int32)[:, None]
    offsets = np.array([8] * (LANES - 1) + [0], np.int32)[:, None]
    constants: dict[str, NDArray[Any]] = {
        "words": words,
        "scales": scales,
        "powers": powers,
        "offsets": offsets,
        "lane_axis": np.array([2]),
        "first": np.array([1]),
        "last": np.array([LANES]),
        "scale_axis": np.array([3]),
        "blocks": np.array([0, 0, columns // block, block]),
        "row": np.array([0, 0, columns]),
    }
    name = {key: f"{table}_int4.{key}" for key in constants}
    graph.initializer.extend(numpy_helper.from_array(value, name[key]) for key, value in constants.items())
    ids, out = node.input[1], node.output[0]

    def result(key: str) -> str:
        return f"{table}_int4.{key}"

    steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("Gather", [name["words"], ids], result("word"), {"axis": 0}),
        ("Unsqueeze", [result("word"), name["lane_axis"]], result("one"), {}),
        ("Mod", [result("one"), name["powers"]], result("below"), {}),
        ("Slice", [result("below"), name["first"], name["last"], name["lane_axis"]], result("next"), {}),
        ("Concat", [result("next"), result("one")], result("above"), {"axis": 2}),
        ("Sub", [result("above"), result("below")], result("shifted"), {}),
        ("Div", [result("shifted"), name["powers"]], result("stored"), {}),
        ("Sub", [result("stored"), name["offsets"]], result("number"), {}),
        ("Cast", [result("number")], result("float"), {"to": kind}),
        ("Reshape", [result("float"), name["blocks"]], result("blocked"), {}),
        ("Gather", [name["scales"], ids], result("scale"), {"axis": 0}),
        ("Unsqueeze", [result("scale"), name["scale_axis"]], result("factor"), {}),
        ("Mul", [result("blocked"), result("factor")], result("scaled"), {}),
        ("Reshape", [result("scaled"), name["row"]], out, {}),
    ]
    nodes: list[NodeProto] = [
        helper.make_node(kind, inputs, [output], name=output, **attributes)
        for kind, inputs, output, attributes in steps
    ]
    nodes[-1].name = gather
    del graph.node[index]
    for offset, new in enumerate(nodes):
        graph.node.insert(index + offset, new)
