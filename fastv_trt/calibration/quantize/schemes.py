"""Floating-point graph -> quantized graph, with onnxruntime's own quantizers.

| scheme | for | form |
|---|---|---|
| int4 | both | weights as blocks of symmetric INT4 behind a standard DequantizeLinear, the token table packed into
int32 words; activations stay |
| int8 | tensorrt | weights per output channel, activations per tensor, both symmetric: zero points are 0 |
| int8 | cpu | activations as uint8 around 128, weights in 7 bits: ONNX Runtime fuses this, and not the form above |
| fp8 | tensorrt | the int8 form with its numbers written as e4m3 |
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fastv_trt.calibration.quantize import packed
from fastv_trt.calibration.quantize.feeds import Feed, Reader
from fastv_trt.calibration.quantize.layers import TABLE, Linear, external_data
from fastv_trt.errors import FastVError

Scheme = Literal["int8", "fp8", "int4"]
Target = Literal["tensorrt", "cpu"]
SCHEMES: dict[Scheme, tuple[Target, ...]] = {
    "int4": ("tensorrt", "cpu"),
    "int8": ("tensorrt", "cpu"),
    "fp8": ("tensorrt",),
}
BLOCKS = (16, 32, 64, 128, 256)
FP8_MAX = 448.0


def int4(source: Path, target: Path, inside: Sequence[Linear], left: Sequence[Linear], block: int) -> None:
    """Write `source` with its weights in INT4 blocks of `block` rows, but for those of `left`.

    The token table is packed (`packed.py`) if it is `inside`.
    """
    from onnxruntime.quantization import QuantFormat
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    with failing(source.name):
        quantizer = MatMulNBitsQuantizer(
            str(source),
            bits=4,
            block_size=block,
            is_symmetric=True,
            nodes_to_exclude=[linear.node for linear in left],
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=("MatMul",),
        )
        quantizer.process()
        model = quantizer.model.model
        for linear in inside:
            if linear.label == TABLE:
                packed.replace(model, linear.weight, linear.node, block)
        save(model, target)


def int8(source: Path, target: Path, left: Sequence[Linear], feeds: Iterator[Feed], *, cpu: bool) -> None:
    """Write `source` with weights and activations of its MatMuls in INT8, ranges from `feeds` (MinMax).

    For the CPU weights keep 7 of 8 bits: processors without VNNI add pairs of products in 16 bits, and saturate. On the
    demo model such a processor doubled the error with 8 bits, and had none of that with 7.
    """
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    with failing(source.name):
        quantize_static(
            str(source),
            str(target),
            Reader(feeds),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=cpu,
            activation_type=QuantType.QUInt8 if cpu else QuantType.QInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=[linear.node for linear in left],
            use_external_data_format=True,
            calibrate_method=CalibrationMethod.MinMax,
            extra_options={
                "ActivationSymmetric": True,
                "WeightSymmetric": True,
                "MatMulConstBOnly": True,
                "OpTypesToExcludeOutputQuantization": ["MatMul"],
            },
        )
        model = onnx.load(str(target))
        for stale in (target, external_data(target)):
            stale.unlink(missing_ok=True)
        save(model, target)


def fp8(source: Path, path: Path) -> None:
    """Rewrite a symmetric int8 graph in place with the same ranges in e4m3: a scale of range/127 becomes range/448.

    Weights are rounded from the floating-point ones of `source`, not from the integers.
    """
    model = onnx.load(str(path))
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    floats = {tensor.name: tensor for tensor in onnx.load(str(source)).graph.initializer}
    scales: dict[str, Any] = {}
    for node in model.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        _, scale, zero = node.input
        if scale not in scales:
            old = numpy_helper.to_array(tensors[scale])
            scales[scale] = (old * old.dtype.type(127.0 / FP8_MAX)).astype(old.dtype)
            tensors[scale].CopyFrom(numpy_helper.from_array(scales[scale], scale))
            _write_fp8(tensors[zero], np.zeros(list(tensors[zero].dims)))
        weight = tensors.get(node.input[0])
        if weight is not None:
            plain = numpy_helper.to_array(floats[weight.name.removesuffix("_quantized")]).astype(np.float32)
            _write_fp8(weight, (plain / scales[scale].astype(np.float32)).clip(-FP8_MAX, FP8_MAX))
    for stale in (path, external_data(path)):
        stale.unlink(missing_ok=True)
    save(model, path)


def save(model: Any, path: Path) -> None:
    """Write a graph with its weights beside it, as the exporter does. Writing onto old weights would append."""
    for stale in (path, external_data(path)):
        if stale.exists():
            raise FastVError(f"expected nothing at {stale}, found a file")
    data = external_data(path)
    onnx.save_model(
        model,
        str(path),
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=data.name,
        size_threshold=1024,
    )
    if data.exists():
        data.chmod(0o644)  # onnx makes it readable for its owner alone


@contextlib.contextmanager
def failing(name: str) -> Iterator[None]:
    """Quiet the library, and turn what it only logs as an error, or raises, into one of ours.

    Raises:
        FastVError: the library failed.
    """
    caught: list[str] = []

    class Catch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            caught.append(record.getMessage())

    import onnxruntime

    onnxruntime.set_default_logger_severity(3)  # calibration runs without in-place caches, and is warned about each
    root, handler = logging.getLogger(), Catch(level=logging.ERROR)
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.ERROR)
    library = logging.getLogger("onnxruntime.quantization")
    before, library.level = library.level, logging.ERROR
    try:
        yield
    except (ValueError, RuntimeError, TypeError, KeyError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FastVError(f"expected onnxruntime to quantize {name}, found: {reason}") from error
    finally:
        onnxruntime.set_default_logger_severity(2)
        library.level = before
        root.setLevel(level)
        root.removeHandler(handler)
    if caught:
        raise FastVError(f"expected onnxruntime to quantize {name}, found: {caught[0].splitlines()[0]}")


def _write_fp8(tensor: TensorProto, values: Any) -> None:
    import ml_dtypes

    encoded, kind = values.astype(ml_dtypes.float8_e4m3fn), TensorProto.FLOAT8E4M3FN
    tensor.CopyFrom(helper.make_tensor(tensor.name, kind, values.shape, encoded.tobytes(), raw=True))
