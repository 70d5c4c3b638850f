"""An exported graph as the compiler gets it: without its weights, and with its capacity fixed.

The copy is in memory; the file in the bundle, and the weights beside it, are read where they lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import helper

from fastv_trt.bundle import Bundle
from fastv_trt.errors import BundleError
from fastv_trt.limits import Axes

DTYPES = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
    onnx.TensorProto.INT64: "int64",
    onnx.TensorProto.INT32: "int32",
    onnx.TensorProto.BOOL: "bool",
}
DECOMPOSABLE = "TRT_decomposable"
"""Attribute of Attention that NVIDIA's parser reads: the operator may run as several kernels instead of a fused one."""


@dataclass(frozen=True)
class Graph:
    """One graph of a bundle.

    Attributes:
        name: as in the manifest.
        path: of the .onnx file; external weights are found beside it.
        model: the graph without its external weights.
    """

    name: str
    path: Path
    model: onnx.ModelProto

    @classmethod
    def load(cls, bundle: Bundle, name: str) -> Graph:
        """Read one graph of a bundle, not its weights.

        Raises:
            BundleError: it is not ONNX.
        """
        return cls.read(bundle.graph_path(name), name)

    @classmethod
    def read(cls, path: Path, name: str) -> Graph:
        """Read an .onnx file as the graph `name`.

        Raises:
            BundleError: it is not ONNX.
        """
        try:
            return cls(name, path, onnx.load(str(path), load_external_data=False))
        except Exception as error:  # protobuf's own error has no public base
            raise BundleError(f"expected an ONNX graph at {path}, found: {error}; export it again") from error

    @property
    def inputs(self) -> dict[str, Axes]:
        """Axes of every input: a number is static, a name is dynamic, -1 has no name."""
        return {value.name: _axes(value) for value in self.model.graph.input}

    @property
    def outputs(self) -> dict[str, Axes]:
        return {value.name: _axes(value) for value in self.model.graph.output}

    @property
    def dtypes(self) -> dict[str, str]:
        """Dtype of every input and output."""
        values = (*self.model.graph.input, *self.model.graph.output)
        kinds = {value.name: value.type.tensor_type.elem_type for value in values}
        return {name: DTYPES.get(kind, helper.tensor_dtype_to_string(kind)) for name, kind in kinds.items()}

    @property
    def aliases(self) -> dict[str, str]:
        """Output -> input of every cache that is written in place."""
        inputs, outputs = set(self.inputs), set(self.outputs)
        return {
            node.output[0]: node.input[0]
            for node in self.model.graph.node
            if node.op_type == "TensorScatter" and node.input[0] in inputs and node.output[0] in outputs
        }

    def with_capacity(self, capacity: int) -> Graph:
        """A copy whose axis C is the number `capacity`: TensorRT wants the size of a cache before it parses."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        graph = model.graph
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param == "C":
                    dim.dim_value = capacity
        return Graph(self.name, self.path, model)

    def decomposable(self) -> Graph:
        """A copy in which every Attention may run as several kernels, for what has no fused one."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for node in model.graph.node:
            if node.op_type == "Attention" and all(a.name != DECOMPOSABLE for a in node.attribute):
                node.attribute.append(helper.make_attribute(DECOMPOSABLE, 1))
        return Graph(self.name, self.path, model)


def _axes(value: onnx.ValueInfoProto) -> Axes:
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else -1) for dim in dims)
