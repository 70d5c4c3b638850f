"""Bundle -> quantized bundle: graphs are quantized, compared layer by layer, and must pass the gate to be written."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from fastv_trt import bundle as disk
from fastv_trt.bundle import Bundle, QuantizationRecord
from fastv_trt.calibration.budget import Budget
from fastv_trt.calibration.metrics import metric
from fastv_trt.calibration.quantize import packed, schemes
from fastv_trt.calibration.quantize.errors import LayerError, layer_errors
from fastv_trt.calibration.quantize.feeds import Feed, feeds
from fastv_trt.calibration.quantize.gate import GateRow, gate
from fastv_trt.calibration.quantize.layers import Linear, check_patterns, chosen, linears, token_table
from fastv_trt.calibration.quantize.schemes import SCHEMES, Scheme, Target
from fastv_trt.calibration.quantize.smooth import smooth
from fastv_trt.calibration.samples import Samples
from fastv_trt.calibration.sweep import Settings
from fastv_trt.errors import FastVError, InputError
from fastv_trt.pruning import Pruning

GRAPHS = ("prefix", "suffix", "vision")
Step = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Request:
    """How to quantize.

    Attributes:
        scheme: int4, int8 or fp8.
        target: what int8 is for, "tensorrt" or "cpu". int4 is good on both, fp8 is for TensorRT alone.
        graphs: of prefix, suffix and vision.
        exclude: patterns of weights that stay in floating point, such as lm_head or layers.2.*; None is lm_head for
            int8 and fp8, and nothing for int4.
        block: rows of a weight that share a scale, for int4.
        smooth: alpha of the migration of scales before int8 or fp8 (`smooth.py`); 0 leaves it out. None is 0.5 for
            int8 and 0 for fp8, whose exponents do the same.
        policy: what is dropped while ranges are collected.
        steps: decode steps per sample that ranges are collected over.
        samples: at most this many are used for ranges; the gate uses all.
        budget: of the gate; None leaves the gate out.
        gate_ratios: values of R at which the gate compares.
    """

    scheme: Scheme
    target: Target | None = None
    graphs: tuple[str, ...] = ("prefix", "suffix")
    exclude: tuple[str, ...] | None = None
    block: int = 32
    smooth: float | None = None
    policy: Pruning = Pruning(ratio=0.5)
    steps: int = 4
    samples: int = 32
    budget: Budget | None = None
    gate_ratios: tuple[float, ...] = (0.0, 0.5)
    metric: str = "exact"
    confidence: float = 0.95
    new_tokens: int = 32

    def check(self, bundle: Bundle) -> None:
        """Raise InputError for what cannot be, with what can."""
        manifest = bundle.manifest
        if manifest.quantization is not None:
            raise InputError(
                f"expected a floating-point bundle, found {bundle.path} quantized to {manifest.quantization.scheme}; "
                "quantize the one that it was made from"
            )
        if self.scheme not in SCHEMES:
            raise InputError(f"expected a scheme of {', '.join(SCHEMES)}, found {self.scheme!r}")
        offered = SCHEMES[self.scheme]
        if self.target is None and self.scheme == "int8":
            raise InputError("expected --for tensorrt or --for cpu with int8, found neither; each is slow on the other")
        if self.target is not None and self.target not in offered:
            raise InputError(f"expected {self.scheme} for {' or '.join(offered)}, found {self.target!r}")
        if self.scheme == "int8" and self.target == "cpu" and manifest.dtype != "fp32":
            raise InputError(
                f"expected an fp32 bundle for int8 on the CPU, found {manifest.dtype}, which its kernels do not fuse; "
                "export with --dtype fp32"
            )
        if manifest.dtype == "bf16":
            raise InputError("expected an fp32 or fp16 bundle, found bf16, which cannot run on the CPU to be measured")
        if self.block not in schemes.BLOCKS:
            raise InputError(f"expected a block of {', '.join(map(str, schemes.BLOCKS))}, found {self.block}")
        unknown = [name for name in self.graphs if name not in GRAPHS]
        if unknown or not self.graphs:
            raise InputError(f"expected graphs of {', '.join(GRAPHS)}, found {', '.join(unknown) or 'none'}")
        if self.smooth is not None and not 0.0 <= self.smooth <= 1.0:
            raise InputError(f"expected an alpha for --smooth in [0, 1], found {self.smooth:g}")
        if self.steps < 0 or self.samples < 1:
            raise InputError(f"expected 0 or more steps and 1 or more samples, found {self.steps} and {self.samples}")

    @property
    def use(self) -> Literal["tensorrt", "cpu", "any"]:
        """What the form is for, as the manifest says it."""
        if self.scheme == "int4":
            return "any"
        return self.target or "tensorrt"

    @property
    def alpha(self) -> float:
        """Of the migration of scales; 0 where there is none."""
        default = 0.5 if self.scheme == "int8" else 0.0
        return 0.0 if self.scheme == "int4" else default if self.smooth is None else self.smooth

    @property
    def excluded(self) -> tuple[str, ...]:
        if self.exclude is not None:
            return self.exclude
        return () if self.scheme == "int4" else ("lm_head",)


@dataclass(frozen=True)
class Quantized:
    """A quantized bundle and what was measured of it.

    Attributes:
        errors: per graph, one per quantized weight.
        gate: one row per policy; empty if the gate was left out.
        bytes_before, bytes_after: of all graphs.
        weights_before, weights_after: bytes of the files of the quantized graphs.
    """

    bundle: Bundle
    errors: dict[str, list[LayerError]]
    gate: list[GateRow]
    bytes_before: int
    bytes_after: int
    weights_before: int
    weights_after: int


def quantize(
    bundle: Bundle,
    output: str | os.PathLike[str],
    samples: Samples,
    request: Request,
    *,
    threads: int | None = None,
    on_step: Step = lambda step, done, total: None,
) -> Quantized:
    """Write a quantized copy of a bundle. Compiled engines are not copied: build them again.

    Raises:
        InputError: the request does not fit the bundle, or the bundle is quantized already.
        FastVError: a graph cannot be quantized, or the gate is not passed; nothing is left behind then.
    """
    request.check(bundle)
    if request.budget is not None:
        Settings(request.budget, "estimate", request.confidence, request.metric, request.new_tokens).check(samples)
    disk.refuse_existing(Path(output))
    found = {name: _weights(bundle, name, request) for name in request.graphs if name in bundle.manifest.graphs}
    everything = [linear for linear_s in found.values() for linear in linear_s]
    if not everything:
        raise InputError(f"expected weights in {', '.join(request.graphs)} of {bundle.path}, found none")
    if request.exclude is not None:
        check_patterns(everything, request.exclude)
    parts = {name: chosen(own, request.excluded) for name, own in found.items()}
    parts = {name: part for name, part in parts.items() if part[0]}
    with disk.writing(output) as folder, tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        _copy(bundle, folder, tuple(parts))
        errors: dict[str, list[LayerError]] = {}
        for name, (inside, _) in parts.items():
            source, target = bundle.graph_path(name), folder / bundle.manifest.graphs[name].path
            plain = _quantize(bundle, name, source, target, parts[name], samples, request, scratch, threads, on_step)
            on_step(f"{name}: errors", 0, 1)
            own = feeds(bundle, name, samples.items[:1], request.policy, 1, threads=threads)
            errors[name] = layer_errors(plain, target, inside, list(islice(own, 2)))
        record = _record(request, parts, samples)
        manifest = disk.finish(
            folder, bundle.manifest.model_copy(update={"quantization": record, "verification": None})
        )
        made = Bundle(folder, manifest)
        rows = _gate(bundle, made, samples, request, threads, on_step)
        _judge(rows, errors, request)
        sizes = [sum(_bytes(b, name) for name in parts) for b in (bundle, made)]
    return Quantized(
        Bundle(Path(output), manifest), errors, rows, bundle.weight_bytes, made.weight_bytes, sizes[0], sizes[1]
    )


def _weights(bundle: Bundle, graph: str, request: Request) -> tuple[Linear, ...]:
    """What can be quantized of one graph: the token table only to INT4, where its rows are made of whole blocks."""
    fits = packed.block_of(bundle.manifest.model.hidden_size, request.block) is not None
    table = token_table(bundle, graph) if request.scheme == "int4" and fits else ()
    return (*table, *linears(bundle, graph))


def _quantize(
    bundle: Bundle,
    name: str,
    source: Path,
    target: Path,
    part: tuple[tuple[Linear, ...], tuple[Linear, ...]],
    samples: Samples,
    request: Request,
    scratch: str,
    threads: int | None,
    on_step: Step,
) -> Path:
    """Write one quantized graph; returns the floating-point one that it stands for: the source, or the smoothed."""
    inside, left = part
    if request.scheme == "int4":
        on_step(f"{name}: int4", 0, 1)
        schemes.int4(source, target, inside, left, request.block)
        return source

    def recorded(what: str) -> Iterator[Feed]:
        used = samples.items[: request.samples]

        def progress(done: int, total: int) -> None:
            on_step(f"{name}: {what}", done, total)

        return feeds(bundle, name, used, request.policy, request.steps, threads=threads, on_sample=progress)

    if request.alpha:
        smoothed = Path(scratch) / source.name
        smooth(source, smoothed, inside, recorded("largest activations"), request.alpha)
        source = smoothed
    schemes.int8(source, target, left, recorded("ranges"), cpu=request.use == "cpu")
    if request.scheme == "fp8":
        schemes.fp8(source, target)
    return source


def _copy(bundle: Bundle, folder: Path, graphs: Sequence[str]) -> None:
    replaced = {bundle.manifest.graphs[name].path for name in graphs}
    replaced |= {f"{path}.data" for path in replaced}
    for file in bundle.manifest.files:
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        if file.path not in replaced:
            shutil.copyfile(bundle.path / file.path, folder / file.path)


def _record(
    request: Request, parts: dict[str, tuple[tuple[Linear, ...], tuple[Linear, ...]]], samples: Samples
) -> QuantizationRecord:
    import onnx
    import onnxruntime

    return QuantizationRecord(
        scheme=request.scheme,
        target=request.use,
        block=request.block if request.scheme == "int4" else None,
        smooth=request.alpha if request.scheme != "int4" else None,
        quantized={name: len(inside) for name, (inside, _) in parts.items()},
        excluded=tuple(linear.label for _, left in parts.values() for linear in left),
        libraries={"onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__},
        samples=min(request.samples, len(samples.items)),
        samples_sha256=samples.sha256,
    )


def _gate(
    plain: Bundle, made: Bundle, samples: Samples, request: Request, threads: int | None, on_step: Step
) -> list[GateRow]:
    if request.budget is None:
        return []
    ranking = (*plain.manifest.rankings, "random")[0]
    return gate(
        plain,
        made,
        samples,
        [Pruning(ratio=ratio, ranking=ranking) for ratio in request.gate_ratios],
        metric(request.metric) if samples.answered else None,
        request.budget,
        request.confidence,
        request.new_tokens,
        threads=threads,
        on_sample=lambda done, total: on_step("gate", done, total),
    )


def _judge(rows: Sequence[GateRow], errors: dict[str, list[LayerError]], request: Request) -> None:
    """Raise FastVError if a row is outside the budget, with the weights whose results are farthest off."""
    failed = [row for row in rows if not row.inside]
    if not failed:
        return
    measured = ", ".join(f"{row.measured.estimate:+.2f} at R={row.policy.ratio:g}" for row in failed)
    worst = sorted((e for own in errors.values() for e in own), key=lambda e: -e.error)[:3]
    named = ", ".join(f"{e.label} ({100 * e.error:.1f}%)" for e in worst)
    raise FastVError(
        f"expected {request.scheme} within {request.budget} of floating point, found {measured}; results are farthest "
        f"off at {named}: leave some out with --exclude, allow more with --budget, or look with --no-gate"
    )


def _bytes(bundle: Bundle, graph: str) -> int:
    path = bundle.manifest.graphs[graph].path
    return sum(file.bytes for file in bundle.manifest.files if file.path in (path, f"{path}.data"))
