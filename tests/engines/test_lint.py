"""Each rule refuses its bad graph; the real compiler then shows why the rule is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

from fastv_trt.bundle import Bundle
from fastv_trt.engines import BuildLimits, build, check, examine
from fastv_trt.engines.compile import compile_graph, parse_findings
from fastv_trt.engines.graph import Graph
from fastv_trt.errors import FastVError, InputError
from fastv_trt.nvidia import Library
from fastv_trt.targets import ProfileRecord, RangeRecord
from tests.engines.graphs import (
    BFLOAT,
    BOOL,
    FLOAT,
    FP8,
    UINT4,
    concat_decoder,
    decoder,
    grouped_query,
    matmul,
    non_zero,
    quantized,
    quantized_activation,
    rotary,
    saved,
    top_k,
)

SILENT = "compiles without a word"
PARSER, BUILDER = "the parser refuses", "the builder fails"


@dataclass(frozen=True)
class Bad:
    """A bad graph, the reason that the lint must give, and what the compiler does without it."""

    make: Callable[[], onnx.ModelProto]
    reason: str
    compiler: str
    compute: str = "8.6"


BAD = {
    "causal": Bad(lambda: decoder(mask=None, is_causal=1), "aligned with the first key", SILENT),
    "padding": Bad(lambda: decoder(padding=True), "nonpad_kv_seqlen is silently ignored", BUILDER),
    "window": Bad(lambda: decoder(opset=25, left_window_size=8), "left_window_size is silently ignored", SILENT),
    "concatenated": Bad(concat_decoder, "past and present as operands", PARSER),
    "softcap": Bad(lambda: decoder(softcap=30.0), "softcap is refused", PARSER),
    "precision": Bad(lambda: decoder(softmax_precision=1), "softmax_precision is refused", PARSER),
    "masked-twice": Bad(lambda: decoder(is_causal=1), "a mask together with is_causal", PARSER),
    "boolean-mask": Bad(lambda: decoder(mask=BOOL), "a boolean mask beside a cache", SILENT),
    "single": Bad(lambda: decoder(kind=FLOAT, mask=FLOAT), "fp32 attention has no fused kernel", BUILDER),
    "small-heads": Bad(lambda: decoder(size=8), "head size 8 is outside 16..256", BUILDER),
    "large-heads": Bad(lambda: decoder(size=320), "head size 320 is outside 16..256", BUILDER),
    "top-k": Bad(lambda: top_k(4000), "K is above 3840", BUILDER),
    "mask-dtype": Bad(lambda: decoder(mask=FLOAT), "operands of different dtypes", BUILDER),
    "rotary-dtype": Bad(lambda: rotary(FLOAT), "operands of different dtypes", PARSER),
    "uint4": Bad(lambda: quantized(UINT4), "UINT4 is refused", PARSER),
    "zero-point": Bad(lambda: quantized(onnx.TensorProto.INT8, 3), "a zero point other than 0", PARSER),
    "fp8": Bad(lambda: quantized_activation(FP8), "FP8 needs compute capability 8.9", BUILDER),
    "bf16": Bad(lambda: matmul(BFLOAT), "bf16 needs compute capability 8.0", BUILDER, "7.5"),
    "non-zero": Bad(non_zero, "the parser has no such operator", PARSER),
    "grouped-query": Bad(grouped_query, "the parser has no such operator", PARSER),
    "circular": Bad(lambda: decoder(mode="circular"), "only linear mode is a cache update", PARSER),
    "unreturned": Bad(lambda: decoder(return_cache=False), "its result not an output", BUILDER),
}
SIZES = {"B": (1, 1, 2), "S": (1, 4, 8), "P": (0, 4, 8), "K": (1, 2, 3)}


def profile(graph: Graph) -> ProfileRecord:
    def shape(axes: tuple[int | str, ...], end: int) -> tuple[int, ...]:
        return tuple(axis if isinstance(axis, int) else SIZES[axis][end] for axis in axes)

    ranges = {
        name: RangeRecord(min=shape(axes, 0), opt=shape(axes, 1), max=shape(axes, 2))
        for name, axes in graph.inputs.items()
    }
    return ProfileRecord(name="only", shapes=ranges)


def compiler_says(library: Library, graph: Graph, compute: str) -> str:
    if parse_findings(library, graph):
        return PARSER
    try:
        compile_graph(library, graph, (profile(graph),), (compute,), lambda phase, share: True)
    except FastVError:
        return BUILDER
    return SILENT


def test_a_good_graph_has_no_finding_and_compiles(tmp_path: Path, rtx: Library) -> None:
    graph = saved(tmp_path, decoder)
    assert check(graph, ("8.6",)) == []
    assert parse_findings(rtx, graph) == []
    assert compiler_says(rtx, graph, "8.6") == SILENT


@pytest.mark.parametrize("name", BAD)
def test_a_bad_graph_is_refused_with_node_reason_and_remedy(tmp_path: Path, name: str) -> None:
    bad = BAD[name]
    graph = saved(tmp_path, bad.make, name)
    found = check(graph, (bad.compute,))
    assert any(bad.reason in finding.reason for finding in found)
    nodes = {node.name for node in graph.model.graph.node}
    for finding in found:
        assert finding.graph == name
        assert finding.node == "the whole graph" or finding.node.split(" (")[0] in nodes
        assert finding.remedy


@pytest.mark.parametrize("name", BAD)
def test_without_the_rule_the_compiler_would_refuse_late_or_not_at_all(tmp_path: Path, name: str, rtx: Library) -> None:
    bad = BAD[name]
    assert compiler_says(rtx, saved(tmp_path, bad.make, name), bad.compute) == bad.compiler


def test_polygraphy_builds_what_the_rules_refuse(tmp_path: Path, rtx: Library) -> None:
    """Another front end of the same compiler sees nothing wrong either: a message about them has to come from here."""
    silent = {saved(tmp_path, bad.make, name).path: name for name, bad in BAD.items() if bad.compiler == SILENT}
    shapes = {
        str(path): {n: (r.min, r.opt, r.max) for n, r in profile(Graph.read(path, name)).shapes.items()}
        for path, name in silent.items()
    }
    (tmp_path / "profiles.json").write_text(json.dumps(shapes))
    program = Path(__file__).with_name("polygraphy_build.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "profiles.json")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    built = [line.removeprefix("built ") for line in done.stdout.splitlines() if line.startswith("built ")]
    assert built == list(shapes) and len(built) >= 3
    assert all(check(Graph.read(path, name)) for path, name in silent.items())


def test_the_compiler_ignores_a_window_and_makes_the_same_kernels(tmp_path: Path, rtx: Library) -> None:
    def plan(window: dict[str, int]) -> bytes:
        graph = saved(tmp_path, lambda: decoder(opset=25, **window))
        return bytes(compile_graph(rtx, graph, (profile(graph),), ("8.6",), lambda phase, share: True).plan)

    # Two builds of one graph in one process number their dynamic dimensions differently: a few bytes of 880 KB.
    with_window, without = plan({"left_window_size": 8}), plan({})
    assert len(with_window) == len(without)
    assert sum(a != b for a, b in zip(with_window, without, strict=True)) < 200


def test_a_dropped_input_is_an_error_and_not_a_log_line(tmp_path: Path, rtx: Library) -> None:
    graph = saved(tmp_path, lambda: decoder(padding=True))
    with pytest.raises(FastVError, match="Unused Input"):
        compile_graph(rtx, graph, (profile(graph),), ("8.6",), lambda phase, share: True)


def test_the_decomposable_mark_makes_fp32_attention_compile(tmp_path: Path, rtx: Library) -> None:
    graph = saved(tmp_path, lambda: decoder(kind=FLOAT, mask=FLOAT)).decomposable()
    assert check(graph) == []
    assert compiler_says(rtx, graph, "8.6") == SILENT


def test_k_of_top_k_must_be_constant(tmp_path: Path) -> None:
    assert "K is not constant" in check(saved(tmp_path, lambda: top_k(None)))[0].reason


def test_a_capacity_that_can_be_neither_read_nor_set_is_refused(tmp_path: Path) -> None:
    findings = check(saved(tmp_path, lambda: decoder(capacity="L")))
    assert any("capacity 'L'" in finding.reason for finding in findings)
    assert check(saved(tmp_path, lambda: decoder(capacity="C"))) == []


def test_exported_graphs_have_no_finding_and_are_parsed(half: Bundle, rtx: Library) -> None:
    report = examine(half, BuildLimits.of(half.manifest.model), ("8.6", "12.0"))
    assert report.ok
    assert report.parser == f"tensorrt-rtx {rtx.version}"


def test_an_fp32_bundle_is_refused_before_anything_is_compiled(bundle: Bundle, rtx: Library) -> None:
    with pytest.raises(InputError, match=r"fp32 attention has no fused kernel; export fp16"):
        build(bundle)
    assert not (bundle.path / "engines").exists()
