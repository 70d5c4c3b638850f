"""Refuse, before a build, the graphs that NVIDIA's compilers refuse late, or compile into wrong numbers.

Every rule was measured with TensorRT-RTX 1.7.1 (tests/engines/test_lint.py repeats it, on one bad graph each):

| rule | what the compiler would do |
|---|---|
| causal beside a cache | aligns the mask with the first key instead of the last: wrong numbers, no message |
| nonpad_kv_seqlen, left_window_size | ignores them: wrong numbers, at most a log line |
| cache operands, softcap, softmax_precision, two masks | refuses to parse |
| boolean mask beside a cache | compiles into a plan twice as large |
| no fused attention kernel, and not decomposable | fails inside the builder |
| TopK of more than 3840 | fails, or only warns where K is an input |
| mixed dtypes | refuses to parse |
| FP8 below 8.9, bf16 and fp32 MatMul below 8.0 | fails inside the builder |
| operators without an importer, UINT4, zero points | refuses to parse |
| a cache that is not written in place | copies it, or refuses to build |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper, shape_inference

from fastv_trt.engines.graph import DECOMPOSABLE, Graph

TOPK_LIMIT = 3840
FUSED_HEAD_SIZES = (16, 256)
REFUSED_OPERATORS = {
    ("com.microsoft", "GroupQueryAttention"): "export Attention with an additive mask",
    ("com.microsoft", "MatMulNBits"): "export DequantizeLinear and MatMul",
    ("", "NonZero"): "select on the host",
}
_SAME_DTYPE = ("Add", "Sub", "Mul", "Div", "Pow", "MatMul", "Gemm", "RotaryEmbedding", "LayerNormalization")
_FP8 = {value for name, value in TensorProto.DataType.items() if name.startswith("FLOAT8")}


@dataclass(frozen=True)
class Finding:
    """One reason why a graph is refused."""

    graph: str
    node: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.graph}: {self.node}: {self.reason}; {self.remedy}"


@dataclass(frozen=True)
class Context:
    """A graph with what can be inferred about its values."""

    graph: Graph
    compute: tuple[str, ...]
    types: dict[str, int]
    shapes: dict[str, tuple[int | str, ...]]
    constants: dict[str, TensorProto]

    @classmethod
    def of(cls, graph: Graph, compute: Sequence[str] = ()) -> Context:
        inferred = shape_inference.infer_shapes(graph.model)
        values = (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output)
        constants = {tensor.name: tensor for tensor in inferred.graph.initializer}
        for node in inferred.graph.node:
            value = attribute(node, "value") if node.op_type == "Constant" else None
            if isinstance(value, TensorProto):
                constants[node.output[0]] = value
        types = {v.name: v.type.tensor_type.elem_type for v in values}
        types |= {name: tensor.data_type for name, tensor in constants.items()}
        shapes: dict[str, tuple[int | str, ...]] = {
            v.name: tuple(d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim) for v in values
        }
        shapes |= {name: tuple(tensor.dims) for name, tensor in constants.items()}
        return cls(graph, tuple(compute), types, shapes, constants)

    @property
    def nodes(self) -> Iterator[NodeProto]:
        """Every node, those of subgraphs and local functions included."""
        yield from _nodes(self.graph.model.graph.node)
        for function in self.graph.model.functions:
            yield from _nodes(function.node)

    @property
    def has_cache(self) -> bool:
        cached = any(node.op_type == "TensorScatter" for node in self.graph.model.graph.node)
        return cached or any(name.startswith("past_key_values.") for name in self.graph.inputs)

    def dtype(self, name: str) -> str | None:
        kind = self.types.get(name, 0)
        return TensorProto.DataType.Name(kind).lower() if kind else None

    def finding(self, node: NodeProto, reason: str, remedy: str) -> Finding:
        return Finding(self.graph.name, f"{node.name or node.output[0]} ({node.op_type})", reason, remedy)


Rule = Callable[[Context], Iterator[Finding]]


def check(graph: Graph, compute: Sequence[str] = ()) -> list[Finding]:
    """Apply every rule to one graph. Needs no NVIDIA library.

    Args:
        graph: as exported, or a copy with a static capacity.
        compute: compute capabilities it is meant for, as "8.6"; dtypes are checked against them.
    """
    context = Context.of(graph, compute)
    return [finding for rule in RULES for finding in rule(context)]


def grouped(findings: Sequence[Finding]) -> list[str]:
    """One text for all findings of one kind in one graph: a decoder repeats each of them in every layer."""
    kinds: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        kinds.setdefault((finding.graph, finding.reason, finding.remedy), []).append(finding)
    return [f"{group[0]} (and {len(group) - 1} more)" if len(group) > 1 else str(group[0]) for group in kinds.values()]


def attribute(node: NodeProto, name: str) -> Any:
    """Value of an attribute, or None."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


def operand(node: NodeProto, index: int) -> str:
    """Name of an input, or "" where it is left out."""
    return node.input[index] if index < len(node.input) else ""


def _nodes(nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
    for node in nodes:
        yield node
        for a in node.attribute:
            for graph in (a.g, *a.graphs) if a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) else ():
                yield from _nodes(graph.node)


def _attentions(context: Context) -> Iterator[NodeProto]:
    return (node for node in context.nodes if node.op_type == "Attention" and not node.domain)


def _ignored_by_parser(context: Context) -> Iterator[Finding]:
    mask = "hide slots with an additive mask instead"
    for node in _attentions(context):
        if attribute(node, "is_causal") and context.has_cache:
            yield context.finding(node, "is_causal beside a cache is aligned with the first key, not the last", mask)
        if operand(node, 6):
            yield context.finding(node, "nonpad_kv_seqlen is silently ignored", mask)
        for window in ("left_window_size", "right_window_size"):
            if attribute(node, window) not in (None, -1):
                yield context.finding(node, f"{window} is silently ignored", mask)


def _refused_by_parser(context: Context) -> Iterator[Finding]:
    for node in _attentions(context):
        if operand(node, 4) or operand(node, 5) or any(node.output[1:3]):
            yield context.finding(
                node, "past and present as operands of Attention are refused", "write the cache with TensorScatter"
            )
        if attribute(node, "softcap"):
            yield context.finding(node, "softcap is refused", "this decoder cannot be compiled")
        if attribute(node, "softmax_precision") is not None:
            yield context.finding(node, "softmax_precision is refused", "leave it out")
        if attribute(node, "is_causal") and operand(node, 3):
            yield context.finding(node, "a mask together with is_causal is refused", "put causality into the mask")


def _boolean_mask(context: Context) -> Iterator[Finding]:
    for node in _attentions(context):
        if context.has_cache and context.dtype(operand(node, 3)) == "bool":
            remedy = "make it additive, in the activations' dtype"
            yield context.finding(node, "a boolean mask beside a cache makes a plan twice as large", remedy)


def _no_fused_kernel(context: Context) -> Iterator[Finding]:
    least, most = FUSED_HEAD_SIZES
    for node in _attentions(context):
        if attribute(node, DECOMPOSABLE):
            continue
        remedy = f"build with --decomposable, which sets {DECOMPOSABLE} and is slower"
        query = operand(node, 0)
        if context.dtype(query) == "float":
            yield context.finding(node, "fp32 attention has no fused kernel", f"export fp16, or {remedy}")
        shape, heads = context.shapes.get(query, ()), attribute(node, "q_num_heads")
        size = shape[-1] if shape else None
        if isinstance(size, int) and size > 0:
            size = size // heads if heads and len(shape) == 3 else size
            if not least <= size <= most:
                yield context.finding(node, f"head size {size} is outside {least}..{most} of the fused kernels", remedy)


def _top_k(context: Context) -> Iterator[Finding]:
    for node in context.nodes:
        if node.op_type != "TopK":
            continue
        constant = context.constants.get(node.input[1])
        if constant is None:
            yield context.finding(
                node, f"K is not constant, and above {TOPK_LIMIT} it only warns", "select on the host, or fix K"
            )
        elif int(numpy_helper.to_array(constant).reshape(-1)[0]) > TOPK_LIMIT:
            yield context.finding(node, f"K is above {TOPK_LIMIT}", "select on the host")


def _mixed_dtypes(context: Context) -> Iterator[Finding]:
    for node in context.nodes:
        if node.op_type == "Attention":
            names = [operand(node, index) for index in range(4)]
            if context.dtype(names[3]) == "bool":
                names = names[:3]
        elif node.op_type in _SAME_DTYPE and not node.domain:
            names = list(node.input)[:3]
        else:
            continue
        kinds = {name: context.dtype(name) for name in names if name and context.dtype(name)}
        if len(set(kinds.values())) > 1:
            listed = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
            yield context.finding(node, f"operands of different dtypes ({listed})", "cast them to one")


def _compute_capability(context: Context) -> Iterator[Finding]:
    kinds = set(context.types.values())
    single = any(n.op_type in ("MatMul", "Gemm") and context.dtype(operand(n, 0)) == "float" for n in context.nodes)
    needs = [
        ("FP8", "8.9", bool(kinds & _FP8)),
        ("bf16", "8.0", TensorProto.BFLOAT16 in kinds),
        ("fp32 MatMul (rankings use it)", "8.0", single),
    ]
    for what, least, present in needs:
        for compute in context.compute if present else ():
            if _number(compute) < _number(least):
                yield Finding(
                    context.graph.name,
                    "the whole graph",
                    f"{what} needs compute capability {least}, and {compute} was asked for",
                    "leave that out of --compute, or export without it",
                )


def _no_importer(context: Context) -> Iterator[Finding]:
    for node in context.nodes:
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) in REFUSED_OPERATORS:
            yield context.finding(node, "the parser has no such operator", REFUSED_OPERATORS[domain, node.op_type])
        kinds = [context.dtype(name) for name in (*node.input, *node.output) if name]
        if "uint4" in kinds:
            yield context.finding(node, "UINT4 is refused", "quantize to INT4")
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and operand(node, 2):
            zero = context.constants.get(node.input[2])
            if zero is None or (not zero.external_data and numpy_helper.to_array(zero).astype("float32").any()):
                yield context.finding(node, "a zero point other than 0 is refused", "quantize symmetrically")


def _cache_in_place(context: Context) -> Iterator[Finding]:
    graph = context.graph
    for node in context.nodes:
        if node.op_type != "TensorScatter":
            continue
        if (attribute(node, "mode") or b"linear") != b"linear":
            yield context.finding(node, "only linear mode is a cache update", "export with mode=linear")
        if node.output[0] not in graph.aliases:
            yield context.finding(
                node, "the cache is not an input, or its result not an output", "make both ends of the graph"
            )
        axis = attribute(node, "axis")
        axes = graph.inputs.get(node.input[0], ())
        capacity = axes[-2 if axis is None else axis] if len(axes) > 1 else "C"
        if capacity != "C" and not (isinstance(capacity, int) and capacity > 0):
            yield context.finding(
                node, f"the capacity {capacity!r} can be neither read nor set", "name the axis C, or make it a number"
            )


def _number(compute: str) -> float:
    return float(compute)


RULES: tuple[Rule, ...] = (
    _ignored_by_parser,
    _refused_by_parser,
    _boolean_mask,
    _no_fused_kernel,
    _top_k,
    _mixed_dtypes,
    _compute_capability,
    _no_importer,
    _cache_in_place,
)
