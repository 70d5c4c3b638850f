"""Small graphs for the lint rules: one good one, and one for each way of being bad."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fastv_trt.engines.graph import Graph

HALF, FLOAT, LONG, BOOL = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
BFLOAT, FP8, UINT4 = TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.UINT4
HEADS, SIZE, CAPACITY = 2, 16, 64


def value(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def constant(name: str, array: Any, kind: int | None = None) -> onnx.TensorProto:
    if kind is not None:
        return helper.make_tensor(name, kind, np.shape(array), np.asarray(array).reshape(-1).tolist())
    return numpy_helper.from_array(np.asarray(array), name)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: list[onnx.TensorProto] | None = None,
    opset: int = 24,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants or [])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def decoder(
    kind: int = HALF,
    mask: int | None = HALF,
    size: int = SIZE,
    opset: int = 24,
    padding: bool = False,
    mode: str = "linear",
    capacity: int | str = CAPACITY,
    return_cache: bool = True,
    **attributes: Any,
) -> onnx.ModelProto:
    """Attention over a cache that is written in place: the shape of every prefix and suffix layer."""
    cache = ("B", HEADS, capacity, size)
    inputs = [
        value("query", kind, "B", HEADS, "S", size),
        value("key", kind, "B", HEADS, "S", size),
        value("value", kind, "B", HEADS, "S", size),
        value("write_index", LONG, "B"),
        value("past_key_values.0.key", kind, *cache),
        value("past_key_values.0.value", kind, *cache),
    ]
    operands = ["query", "present.0.key", "present.0.value"]
    if mask is not None:
        inputs.append(value("mask", mask, "B", 1, "S", CAPACITY))
        operands.append("mask")
    if padding:
        inputs.append(value("lengths", LONG, "B"))
        operands += [""] * (6 - len(operands)) + ["lengths"]
    nodes = [
        helper.make_node(
            "TensorScatter",
            [f"past_key_values.0.{part}", part, "write_index"],
            [f"present.0.{part}"],
            name=f"write_{part}",
            axis=-2,
            mode=mode,
        )
        for part in ("key", "value")
    ]
    nodes.append(helper.make_node("Attention", operands, ["output"], name="attend", scale=0.25, **attributes))
    outputs = [value("output", kind, "B", HEADS, "S", size)]
    if return_cache:
        outputs += [value("present.0.key", kind, *cache), value("present.0.value", kind, *cache)]
    return model(nodes, inputs, outputs, opset=opset)


def concat_decoder() -> onnx.ModelProto:
    """Attention with the past as its own operands."""
    cache = ("B", HEADS, "P", SIZE)
    inputs = [value(n, HALF, "B", HEADS, "S", SIZE) for n in ("query", "key", "value")]
    inputs += [value(f"past_key_values.0.{n}", HALF, *cache) for n in ("key", "value")]
    outputs = [value("output", HALF, "B", HEADS, "S", SIZE)]
    outputs += [value(f"present.0.{n}", HALF, "B", HEADS, "Q", SIZE) for n in ("key", "value")]
    node = helper.make_node(
        "Attention",
        ["query", "key", "value", "", "past_key_values.0.key", "past_key_values.0.value"],
        ["output", "present.0.key", "present.0.value"],
        name="attend",
    )
    return model([node], inputs, outputs)


def top_k(k: int | None, size: int = 5000) -> onnx.ModelProto:
    inputs = [value("scores", FLOAT, 1, size)] + ([value("k", LONG, 1)] if k is None else [])
    outputs = [value("values", FLOAT, 1, "K"), value("indices", LONG, 1, "K")]
    constants = [] if k is None else [constant("k", np.array([k], np.int64))]
    return model(
        [helper.make_node("TopK", ["scores", "k"], ["values", "indices"], name="top")], inputs, outputs, constants
    )


def rotary(kind: int) -> onnx.ModelProto:
    """RotaryEmbedding of fp16 states with cos and sin of another dtype."""
    inputs = [value("states", HALF, "B", HEADS, "S", SIZE)]
    inputs += [value(n, kind, "B", "S", SIZE // 2) for n in ("cos", "sin")]
    node = helper.make_node("RotaryEmbedding", ["states", "cos", "sin"], ["output"], name="rotate")
    return model([node], inputs, [value("output", HALF, "B", HEADS, "S", SIZE)])


def quantized(kind: int, zero_point: int = 0) -> onnx.ModelProto:
    """A MatMul whose weight is stored quantized."""
    weight = constant("weight", np.ones((32, 32), np.int64), kind)
    scale, zero = constant("scale", np.float16(0.5)), constant("zero", np.int64(zero_point), kind)
    nodes = [
        helper.make_node("DequantizeLinear", ["weight", "scale", "zero"], ["wide"], name="dequantize"),
        helper.make_node("MatMul", ["x", "wide"], ["y"], name="multiply"),
    ]
    return model(nodes, [value("x", HALF, "B", 32)], [value("y", HALF, "B", 32)], [weight, scale, zero])


def quantized_activation(kind: int) -> onnx.ModelProto:
    """Both operands of a MatMul quantized, so that it runs in that dtype."""
    constants = [
        constant("weight", np.ones((32, 32), np.float32), kind),
        constant("scale", np.float16(0.5)),
        constant("zero", np.float32(0), kind),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["narrow"], name="quantize"),
        helper.make_node("DequantizeLinear", ["narrow", "scale", "zero"], ["again"], name="dequantize_x"),
        helper.make_node("DequantizeLinear", ["weight", "scale", "zero"], ["wide"], name="dequantize"),
        helper.make_node("MatMul", ["again", "wide"], ["y"], name="multiply"),
    ]
    return model(nodes, [value("x", HALF, "B", 32)], [value("y", HALF, "B", 32)], constants)


def matmul(kind: int) -> onnx.ModelProto:
    constants = [constant("weight", np.ones((32, 32), np.float32), kind)]
    node = helper.make_node("MatMul", ["x", "weight"], ["y"], name="multiply")
    return model([node], [value("x", kind, "B", 32)], [value("y", kind, "B", 32)], constants)


def non_zero() -> onnx.ModelProto:
    node = helper.make_node("NonZero", ["x"], ["y"], name="find")
    return model([node], [value("x", HALF, "B", 32)], [value("y", LONG, 2, "K")])


def grouped_query() -> onnx.ModelProto:
    inputs = [value(n, HALF, "B", "S", HEADS * SIZE) for n in ("query", "key", "value")]
    node = helper.make_node(
        "GroupQueryAttention",
        ["query", "key", "value"],
        ["y"],
        name="attend",
        domain="com.microsoft",
        num_heads=HEADS,
        kv_num_heads=HEADS,
    )
    return model([node], inputs, [value("y", HALF, "B", "S", HEADS * SIZE)])


def saved(folder: Path, make: Callable[[], onnx.ModelProto], name: str = "graph") -> Graph:
    path = folder / f"{name}.onnx"
    onnx.save(make(), path)
    return Graph.read(path, name)
