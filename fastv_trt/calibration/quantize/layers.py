"""The weights of an exported graph by the names that people use: layers.2.q_proj, lm_head, embed_tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import onnx

from fastv_trt.bundle import Bundle
from fastv_trt.errors import InputError

TABLE = "embed_tokens"
ROLES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Linear:
    """One MatMul by a constant weight, or the lookup in the token table.

    Attributes:
        label: layers.<i>.<role>, lm_head, embed_tokens, or the node's name where a graph is not made of llama-like
            layers.
        node: name of the node.
        weight: name of the initializer, [in, out]; of the table [V, d].
        output: name of its result.
    """

    label: str
    node: str
    weight: str
    output: str


def linears(bundle: Bundle, graph: str) -> tuple[Linear, ...]:
    """The weights of one graph, in the order in which they are used."""
    model = onnx.load(str(bundle.graph_path(graph)), load_external_data=False)
    matrices = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2}
    nodes = [n for n in model.graph.node if n.op_type == "MatMul" and len(n.input) == 2 and n.input[1] in matrices]
    names = _labels(bundle, graph, [str(node.name) for node in nodes])
    return tuple(
        Linear(label, str(node.name), str(node.input[1]), str(node.output[0]))
        for label, node in zip(names, nodes, strict=True)
    )


def token_table(bundle: Bundle, graph: str) -> tuple[Linear, ...]:
    """The lookup of token ids, if `graph` is the one that has it."""
    model = onnx.load(str(bundle.graph_path(graph)), load_external_data=False)
    width = bundle.manifest.model.hidden_size
    tables = {t.name for t in model.graph.initializer if len(t.dims) == 2 and t.dims[1] == width}
    nodes = [n for n in model.graph.node if n.op_type == "Gather" and n.input[0] in tables]
    if graph != "prefix" or len(nodes) != 1:
        return ()
    return (Linear(TABLE, str(nodes[0].name), str(nodes[0].input[0]), str(nodes[0].output[0])),)


def chosen(found: Sequence[Linear], exclude: Sequence[str]) -> tuple[tuple[Linear, ...], tuple[Linear, ...]]:
    """Split into what is quantized and what the patterns `exclude` leave in floating point."""
    left = tuple(linear for linear in found if any(fnmatchcase(linear.label, pattern) for pattern in exclude))
    return tuple(linear for linear in found if linear not in left), left


def check_patterns(found: Sequence[Linear], exclude: Sequence[str]) -> None:
    """Raise InputError if a pattern names nothing: it would be a silent no-op."""
    for pattern in exclude:
        if not any(fnmatchcase(linear.label, pattern) for linear in found):
            sample = ", ".join(dict.fromkeys(linear.label for linear in found[:3] + found[-1:]))  # type: ignore[operator]
            raise InputError(f"expected patterns that name weights ({sample}, ...), found {pattern!r}")


def _labels(bundle: Bundle, graph: str, nodes: list[str]) -> list[str]:
    manifest = bundle.manifest
    first, last = {"prefix": (0, manifest.k), "suffix": (manifest.k, manifest.model.layers)}.get(graph, (0, 0))
    labels = [f"layers.{index}.{role}" for index in range(first, last) for role in ROLES]
    labels += ["lm_head"] if graph == "suffix" else []
    if graph in ("prefix", "suffix") and len(labels) == len(nodes):
        return labels
    return [f"{graph}.{node}" for node in nodes]


def external_data(path: Path) -> Path:
    """Where the weights of a graph lie."""
    return path.with_name(f"{path.name}.data")
