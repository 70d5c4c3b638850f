"""Quantized bundles: their form, their numbers, and what is refused. One small random model, every scheme."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from fastv_trt.bundle import Bundle
from fastv_trt.calibration import Budget, Samples
from fastv_trt.calibration.quantize import Request, packed, quantize
from fastv_trt.calibration.quantize.errors import session_with
from fastv_trt.calibration.quantize.feeds import Reader, feeds
from fastv_trt.calibration.quantize.layers import chosen, linears
from fastv_trt.calibration.quantize.schemes import int8
from fastv_trt.calibration.quantize.smooth import seams, smooth
from fastv_trt.engines import BuildLimits, examine
from fastv_trt.errors import FastVError, InputError
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Runtime
from tests.conftest import LAYERS, Run, picture

FORMS = {
    "int4": Request("int4"),
    "int8-cpu": Request("int8", "cpu", samples=4, steps=1),
    "int8-tensorrt": Request("int8", "tensorrt", samples=4, steps=1),
    "fp8": Request("fp8", samples=4, steps=1),
}
CUT = 2
CLOSE = {"int4": 0.55, "fp8": 0.8, "int8-cpu": 0.98, "int8-tensorrt": 0.98}
"""Cosine of logits. Wide random weights lose far more to rounding than trained ones do."""


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    folder = tmp_path_factory.mktemp("samples")
    lines = []
    for index in range(6):
        Image.fromarray(picture(index)).save(folder / f"{index}.png")
        lines.append(json.dumps({"image": f"{index}.png", "prompt": f"what is it, number {index}?"}))
    (folder / "samples.jsonl").write_text("\n".join(lines))
    return Samples.read(folder / "samples.jsonl")


@pytest.fixture(scope="module")
def made(bundle: Bundle, samples: Samples, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bundle]:
    """Quantized copies of the ordinary bundle by form, made once."""
    done: dict[str, Bundle] = {}

    def get(form: str) -> Bundle:
        if form not in done:
            folder = tmp_path_factory.mktemp("quantized") / form
            quantize(bundle, folder, samples, FORMS[form])
            done[form] = Bundle.open(folder)  # checks every hash
        return done[form]

    return get


def graph(bundle: Bundle, name: str) -> onnx.GraphProto:
    return onnx.load(str(bundle.graph_path(name))).graph


@pytest.mark.parametrize("form", FORMS)
def test_every_form_answers_much_like_floating_point(
    made: Callable[[str], Bundle], runtime: Runtime, samples: Samples, form: str
) -> None:
    other = Runtime.load(made(form))
    item = samples.items[-1]
    for policy in (Pruning(ratio=0), Pruning(ratio=0.5, ranking="uniform")):
        logits = []
        for each in (runtime, other):
            request = each.request(item.prompt, list(item.images))
            caches = each.chain.caches([request], [policy], 3)
            logits.append([each.chain.prefill(caches, 0, request, policy).logits])
            logits[-1] += [each.chain.decode(caches, [token])[0] for token in (20, 30)]
        for a, b in zip(*logits, strict=True):
            cosine = float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
            assert cosine > CLOSE[form]
            assert abs(np.linalg.norm(b) / np.linalg.norm(a) - 1) < 0.2


@pytest.mark.parametrize("form", FORMS)
def test_caches_stay_inputs_and_outputs_and_every_weight_is_quantized(made: Callable[[str], Bundle], form: str) -> None:
    for name, layers in (("prefix", CUT), ("suffix", LAYERS - CUT)):
        own = graph(made(form), name)
        inputs, outputs = {value.name for value in own.input}, {value.name for value in own.output}
        scatters = [node for node in own.node if node.op_type == "TensorScatter"]
        assert len(scatters) == 2 * layers
        assert all(node.input[0] in inputs and node.output[0] in outputs for node in scatters)
        counts = {kind: sum(node.op_type == kind for node in own.node) for kind in ("DequantizeLinear", "MatMul")}
        quantized = 7 * layers + (form == "int4" and name == "suffix")
        record = made(form).manifest.quantization
        table = form == "int4" and name == "prefix"
        assert record is not None and record.quantized[name] == quantized + table
        assert table == any(t.name.endswith("_int4.words") for t in own.initializer)
        weights = {tensor.name for tensor in own.initializer}
        behind = [n for n in own.node if n.op_type == "DequantizeLinear" and n.input[0] in weights]
        assert len(behind) == quantized
        assert counts["MatMul"] == quantized + (form != "int4" and name == "suffix")


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize(("columns", "block", "own"), [(64, 32, 32), (96, 64, 32), (48, 32, 16), (256, 256, 256)])
def test_a_packed_table_gives_the_rows_that_its_numbers_stand_for(
    kind: type, columns: int, block: int, own: int
) -> None:
    rows = 4100  # more than are packed at a time
    table = np.random.default_rng(columns).standard_normal((rows, columns)).astype(kind)
    table[3] = 0
    table[5, 0] = -table[5].max() * 3
    before = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["out"], name="lookup")],
        "lookup",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["B", "S"])],
        [helper.make_tensor_value_info("out", helper.np_dtype_to_tensor_dtype(table.dtype), ["B", "S", columns])],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(before, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    packed.replace(model, "table", "lookup", block)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    got = session.run(None, {"ids": np.arange(rows).reshape(2, -1)})[0].reshape(rows, columns)
    blocks = table.astype(np.float32).reshape(rows, -1, own)
    furthest = np.take_along_axis(blocks, np.abs(blocks).argmax(2)[..., None], 2)
    scale = (furthest / -8).astype(kind).astype(np.float32)
    scale[scale == 0] = 1
    want = (np.clip(np.rint(blocks / scale), -8, 7) * scale).reshape(rows, columns)
    assert np.allclose(got.astype(np.float32), want, rtol=2e-3 if kind is np.float16 else 1e-6, atol=0)
    assert not got[3].any()


def test_rows_that_are_not_made_of_blocks_stay_in_floating_point() -> None:
    assert packed.block_of(896, 128) == 128 and packed.block_of(896, 256) == 128
    assert packed.block_of(8, 32) is None and packed.block_of(40, 32) is None
    with pytest.raises(ValueError, match="blocks"):
        packed.replace(onnx.ModelProto(graph=_lookup(40)), "table", "lookup", 32)


def _lookup(columns: int) -> onnx.GraphProto:
    node = helper.make_node("Gather", ["table", "ids"], ["out"], name="lookup")
    return onnx.GraphProto(node=[node], initializer=[numpy_helper.from_array(np.zeros((9, columns)), "table")])


@pytest.mark.parametrize(
    ("form", "kind"),
    [("int4", TensorProto.INT4), ("int8-tensorrt", TensorProto.INT8), ("fp8", TensorProto.FLOAT8E4M3FN)],
)
def test_forms_for_engines_are_symmetric(made: Callable[[str], Bundle], form: str, kind: int) -> None:
    for name in ("prefix", "suffix"):
        own = graph(made(form), name)
        tensors = {tensor.name: tensor for tensor in own.initializer}
        for node in own.node:
            if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
                continue
            zero = tensors[node.input[2]] if len(node.input) > 2 else None
            assert zero is None or not numpy_helper.to_array(zero).astype(np.float32).any()
            assert zero is None or zero.data_type == kind
        assert TensorProto.UINT4 not in {tensor.data_type for tensor in own.initializer}


def test_the_form_for_the_cpu_runs_on_its_integer_kernels(made: Callable[[str], Bundle], tmp_path: Path) -> None:
    """One fused kernel per quantized weight, and nothing left to dequantize."""
    for name, layers in (("prefix", CUT), ("suffix", LAYERS - CUT)):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.optimized_model_filepath = str(tmp_path / f"{name}.onnx")
        path = made("int8-cpu").graph_path(name)
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        kinds = [
            node.op_type for node in onnx.load(str(tmp_path / f"{name}.onnx"), load_external_data=False).graph.node
        ]
        assert sum(kind in ("MatMulIntegerToFloat", "QLinearMatMul") for kind in kinds) == 7 * layers


def test_ranges_of_the_suffix_differ_when_it_sees_what_the_chain_would_drop(
    bundle: Bundle, samples: Samples, tmp_path: Path
) -> None:
    """The reason for collecting through the chain: unpruned inputs give another model's ranges."""
    found = {}
    for label, ratio in (("chain", 0.75), ("unpruned", 0.0)):
        policy = Pruning(ratio=ratio)
        own = feeds(bundle, "suffix", samples.items[:4], policy, 1)
        target = tmp_path / f"{label}.onnx"
        int8(bundle.graph_path("suffix"), target, chosen(linears(bundle, "suffix"), ("lm_head",))[1], own, cpu=False)
        scales = onnx.load(str(target)).graph
        activations = {node.input[1] for node in scales.node if node.op_type == "QuantizeLinear"}
        found[label] = {
            tensor.name: float(numpy_helper.to_array(tensor))
            for tensor in scales.initializer
            if tensor.name in activations
        }
    assert found["chain"].keys() == found["unpruned"].keys() and len(found["chain"]) == 4 * (LAYERS - CUT)
    ratios = {name: scale / found["chain"][name] for name, scale in found["unpruned"].items()}
    assert max(ratios.values()) > 1.02
    # Tokens of layer K itself are a subset of the unpruned ones: dropping some can only narrow its first range.
    first = next(iter(found["chain"]))
    assert ratios[first] >= 1.0


def test_feeds_are_what_the_chain_passes_on(bundle: Bundle, samples: Samples) -> None:
    prefix = list(feeds(bundle, "prefix", samples.items[:2], Pruning(ratio=0.6), 2))
    suffix = list(feeds(bundle, "suffix", samples.items[:2], Pruning(ratio=0.6), 2))
    assert [feed["input_ids"].shape[1] for feed in prefix][1:3] == [1, 1] and len(prefix) == len(suffix) == 6
    for whole, kept in zip(prefix, suffix, strict=True):
        dropped = whole["input_ids"].shape[1] - kept["keep_indices"].shape[1]
        assert dropped == (15 if whole["input_ids"].shape[1] > 1 else 0)
        assert kept["hidden_states"].shape[1] == whole["input_ids"].shape[1]
    reader = Reader(iter(prefix))
    assert [reader.get_next() is not None for _ in range(7)] == [True] * 6 + [False]


def test_moving_scales_changes_no_result(bundle: Bundle, samples: Samples, tmp_path: Path) -> None:
    for name, layers in (("prefix", CUT), ("suffix", LAYERS - CUT)):
        inside = chosen(linears(bundle, name), ("lm_head",))[0]
        source, target = bundle.graph_path(name), tmp_path / f"{name}.onnx"
        own = list(islice(feeds(bundle, name, samples.items[:2], Pruning(ratio=0.5), 1), 4))
        assert smooth(source, target, inside, own, 0.5) == 3 * layers  # before q k v, before gate up, before down
        output = "logits" if name == "suffix" else "hidden_states"
        for feed in own:
            before, after = (session_with(path, []).run([output], feed)[0] for path in (source, target))
            assert np.abs(before - after).max() <= 1e-4 * max(1.0, np.abs(before).max())
        moved = {t.name: numpy_helper.to_array(t) for t in onnx.load(str(target)).graph.initializer}
        plain = {t.name: numpy_helper.to_array(t) for t in onnx.load(str(source)).graph.initializer}
        assert any(not np.array_equal(moved[linear.weight], plain[linear.weight]) for linear in inside)


def test_a_norm_that_something_else_reads_too_is_left_alone(bundle: Bundle, tmp_path: Path) -> None:
    source = bundle.graph_path("suffix")
    smooth(source, tmp_path / "suffix.onnx", (), [], 0.5)  # moves nothing, but gives every norm its own weight
    model = onnx.load(str(tmp_path / "suffix.onnx"))
    every = {linear.weight for linear in linears(bundle, "suffix")}
    found = seams(model, every)
    model.graph.node.append(onnx.helper.make_node("Identity", [found[0].tensor], ["another_reader"]))
    assert len(seams(model, every)) == len(found) - 1
    assert len(seams(model, every - {found[1].readers[0]})) == len(found) - 2


@pytest.mark.parametrize("form", ["int4", "int8-tensorrt"])
def test_forms_for_engines_pass_the_check(made: Callable[[str], Bundle], form: str) -> None:
    bundle = made(form)
    report = examine(bundle, BuildLimits.of(bundle.manifest.model), ("8.6", "8.9"), decomposable=True)
    assert report.lines == []


def test_fp8_is_for_gpus_that_have_it(made: Callable[[str], Bundle]) -> None:
    bundle = made("fp8")
    limits = BuildLimits.of(bundle.manifest.model)
    assert examine(bundle, limits, ("8.9", "12.0"), decomposable=True).lines == []
    lines = examine(bundle, limits, ("8.6", "8.9"), decomposable=True).lines
    assert lines and all("FP8 needs compute capability 8.9, and 8.6 was asked for" in line for line in lines)


def test_the_form_for_the_cpu_is_refused_as_an_engine(made: Callable[[str], Bundle]) -> None:
    bundle = made("int8-cpu")
    lines = examine(bundle, BuildLimits.of(bundle.manifest.model), (), decomposable=True).lines
    assert any("zero point other than 0" in line for line in lines)


def test_a_form_for_engines_is_called_slow_on_the_cpu(
    cli: Run, made: Callable[[str], Bundle], samples: Samples
) -> None:
    image = samples.items[0].images[0]
    for form, slow in (("int8-tensorrt", True), ("fp8", True), ("int8-cpu", False), ("int4", False)):
        code, out, err = cli("run", made(form).path, "-p", "what?", "-i", image, "--max-new-tokens", 1)
        assert code == 0 and ("note: slow: this bundle is" in err) == slow
        code, out, _ = cli("inspect", made(form).path)
        assert code == 0 and f"quantized: {form[:4].rstrip('-')} for" in out


def test_a_quantized_bundle_is_not_verified_against_its_checkpoint(
    cli: Run, made: Callable[[str], Bundle], checkpoints: Callable[..., Path]
) -> None:
    code, _, err = cli("verify", made("int4").path, "--against", checkpoints())
    assert code == 2 and "let quantize's gate judge" in err


def test_the_command_gates_and_reports(cli: Run, bundle: Bundle, samples: Samples, tmp_path: Path) -> None:
    arguments = ["--scheme", "int4", "--samples", samples.source, "--max-new-tokens", 2, "--json"]
    code, out, err = cli(
        "quantize", bundle.path, tmp_path / "a", *arguments, "--budget", "kl <= 100", "--exclude", "lm_head"
    )
    content = json.loads(out)
    assert code == 0, err
    assert content["quantization"]["excluded"] == ["lm_head"]
    assert [row["policy"]["ratio"] for row in content["gate"]] == [0.0, 0.5]
    assert {error["label"] for error in content["errors"]["prefix"]} >= {"layers.0.q_proj", "layers.1.down_proj"}
    assert all(0 < error["error"] < 1 for own in content["errors"].values() for error in own)
    assert content["quantized_graph_bytes"]["after"] < content["quantized_graph_bytes"]["before"]
    code, _, err = cli("quantize", bundle.path, tmp_path / "b", *arguments, "--budget", "kl <= 0")
    assert code == 1 and "results are farthest off at" in err
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    code, _, err = cli("quantize", tmp_path / "a", tmp_path / "b", *arguments)
    assert code == 2 and "quantized to int4" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scheme", "int2"], "found 'int2'"),
        (["--scheme", "int8"], "--for tensorrt or --for cpu"),
        (["--scheme", "fp8", "--for", "cpu"], "expected fp8 for tensorrt, found 'cpu'"),
        (["--scheme", "int4", "--block", "7"], "found 7"),
        (["--scheme", "int4", "--graphs", "head"], "found head"),
        (["--scheme", "int4", "--exclude", "layers.9.*"], "found 'layers.9.*'"),
        (["--scheme", "int8", "--for", "cpu", "--smooth", "2"], "found 2"),
        (["--scheme", "int4", "--budget", "accuracy >= -1"], "expected answers"),
    ],
)
def test_bad_requests_are_refused(
    cli: Run, bundle: Bundle, samples: Samples, tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, _, err = cli("quantize", bundle.path, tmp_path / "out", "--samples", samples.source, *arguments)
    assert code == 2 and message in err, err
    assert not list(tmp_path.iterdir())


def test_int8_on_the_cpu_needs_fp32(bundle: Bundle, samples: Samples, tmp_path: Path) -> None:
    half = Bundle(bundle.path, bundle.manifest.model_copy(update={"dtype": "fp16"}))
    with pytest.raises(InputError, match="found fp16, which its kernels do not fuse"):
        quantize(half, tmp_path / "out", samples, FORMS["int8-cpu"])


def test_a_failing_gate_leaves_nothing_behind(bundle: Bundle, samples: Samples, tmp_path: Path) -> None:
    request = Request("int4", budget=Budget.parse("kl <= 0"), new_tokens=2)
    with pytest.raises(FastVError, match="--exclude"):
        quantize(bundle, tmp_path / "out", samples, request)
    assert not list(tmp_path.iterdir())
