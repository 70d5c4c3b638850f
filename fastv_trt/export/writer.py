"""Tracing one module into one ONNX file, its weights beside it."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir
import torch

from fastv_trt.errors import FastVError
from fastv_trt.export import ops
from fastv_trt.export.decoder import tracing
from fastv_trt.export.graphs import Traceable

INLINE_BYTES = 1024  # constants of a graph without weights stay inside it


def write(traceable: Traceable, path: Path) -> None:
    """Trace `traceable` and write `path`, with the weights in `path` + ".data" (every graph has its own).

    Weights go from the torch module to the file one tensor at a time; no second copy is held.

    Raises:
        FastVError: the written graph does not have the inputs and outputs of the contract.
    """
    arguments = traceable.arguments
    axes = tuple({i: a for i, a in enumerate(arg.axes) if isinstance(a, str)} for arg in arguments)
    named = _shapes_for(traceable, axes)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_quiet())
        stack.enter_context(torch.no_grad())
        if traceable.decoder is not None:
            stack.enter_context(tracing(traceable.decoder))
        program = torch.onnx.export(
            traceable.module,
            tuple(arg.example for arg in arguments),
            input_names=[arg.name for arg in arguments],
            output_names=[result.name for result in traceable.results],
            dynamic_shapes=named,
            opset_version=ops.OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model = program.model
    for value, record in zip(model.graph.outputs, traceable.results, strict=True):
        value.shape = onnx_ir.Shape(record.shape)
    _strip(model)
    constants = [value.const_value for value in model.graph.initializers.values()]
    weightless = sum(tensor.nbytes for tensor in constants if tensor is not None) < INLINE_BYTES
    onnx_ir.save(model, path, external_data=None if weightless else f"{path.name}.data")
    _check(traceable, path)


def _shapes_for(traceable: Traceable, axes: tuple[dict[int, str], ...]) -> tuple[object, ...]:
    """Dynamic shapes in the nesting of the module's forward, whose last arguments may be one variadic one."""
    named = len(axes) - traceable.variadic
    return (*axes[:named], axes[named:]) if traceable.variadic else axes


def _strip(model: onnx_ir.Model) -> None:
    """Remove the exporter's notes: source paths and stack traces of the exporting machine."""
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.doc_string = model.graph.doc_string = None
    model.producer_name, model.producer_version = "fastv-trt", None
    for node in model.graph:
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()


def _check(traceable: Traceable, path: Path) -> None:
    onnx.checker.check_model(str(path))
    graph = onnx.load(str(path), load_external_data=False).graph
    found = ([i.name for i in graph.input], [o.name for o in graph.output])
    wanted = ([a.name for a in traceable.arguments], [r.name for r in traceable.results])
    if found != wanted:
        raise FastVError(f"expected graph {path.name} with inputs and outputs {wanted}, found {found}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter logs and prints; a user needs only its errors."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)
