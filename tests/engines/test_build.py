"""Real builds by TensorRT-RTX, without a GPU: nothing here is executed on one."""

from __future__ import annotations

import importlib.util
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from fastv_trt import nvidia, targets
from fastv_trt.bundle import Bundle
from fastv_trt.engines import BuildLimits, Range, build, prepare
from fastv_trt.engines.compile import compile_graph
from fastv_trt.engines.doctor import engines, machine
from fastv_trt.errors import BundleError, FastVError, InputError, UnavailableError
from fastv_trt.hashes import sha256
from fastv_trt.nvidia import Gpu, Gpus, Library
from fastv_trt.targets import Target
from tests.engines.conftest import copied

OFFERED = ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")


def small(bundle: Bundle) -> BuildLimits:
    return BuildLimits.of(bundle.manifest.model, max_prompt=128, max_batch=4, capacity=192)


def test_the_tested_compute_capabilities_are_all_that_rtx_offers(rtx: Library) -> None:
    assert rtx.ahead_of_time == OFFERED


@pytest.mark.parametrize("number", OFFERED[1:])
def test_the_demo_builds_for_every_offered_compute_capability(
    demo_half: Bundle, tmp_path: Path, number: str, rtx: Library
) -> None:
    demo = copied(demo_half, tmp_path / "bundle")
    target = build(demo, compute=[number])
    assert target.name == f"rtx-sm{number.replace('.', '')}"
    assert set(target.manifest.engines) == set(demo.manifest.graphs)
    assert Target.open(target.path).stale(demo) == []


def test_the_oldest_offered_capability_builds_what_has_no_fp32_matmul(half: Bundle, rtx: Library) -> None:
    with pytest.raises(InputError, match=r"rank-last-query.*fp32 MatMul .* needs compute capability 8.0"):
        build(half, limits=small(half), compute=["7.5"])
    prefix = prepare(half, small(half))[1]
    compiled = compile_graph(rtx, prefix.graph, prefix.profiles, ("7.5",), lambda phase, share: True)
    assert [tensor.name for tensor in compiled.outputs][:2] == ["hidden_states", "query_states"]


@pytest.mark.slow
def test_a_second_build_for_several_gpus_is_byte_identical(fresh: Bundle, rtx: Library) -> None:
    first, second = (build(fresh, limits=small(fresh), name=name) for name in ("one", "two"))
    if not first.manifest.steady:
        pytest.skip("this system does not let a process turn address randomization off")
    assert {p.name: sha256(p) for p in first.path.iterdir()} == {p.name: sha256(p) for p in second.path.iterdir()}


def test_engine_json_says_everything_without_a_gpu(built: tuple[Bundle, Target], rtx: Library) -> None:
    bundle, target = built
    manifest = Target.open(target.path).manifest
    assert manifest == target.manifest
    assert (manifest.backend, manifest.library_version) == ("tensorrt-rtx", rtx.version)
    assert (manifest.compute_capabilities, manifest.precision) == (("8.6",), "fp16")
    suffix = manifest.engines["suffix"]
    assert [profile.name for profile in suffix.profiles] == ["prefill", "decode"]
    assert suffix.profiles[0].shapes["keep_indices"].max == (2, 128)
    assert suffix.profiles[1].shapes["hidden_states"].max == (4, 2, bundle.manifest.model.hidden_size)
    assert not any(tensor.shape_tensor for tensor in (*suffix.inputs, *suffix.outputs))
    layers = range(bundle.manifest.k, bundle.manifest.model.layers)
    assert suffix.aliases == {
        f"present.{i}.{part}": f"past_key_values.{i}.{part}" for i in layers for part in ("key", "value")
    }
    caches = [tensor for tensor in suffix.inputs if tensor.name.startswith("past")]
    assert {tensor.shape[2] for tensor in caches} == {192}
    assert suffix.source == {f.path: f.sha256 for f in bundle.manifest.files if f.path.startswith("onnx/suffix")}


def test_a_kept_limit_shrinks_the_suffix_caches(fresh: Bundle, rtx: Library) -> None:
    limits = BuildLimits.of(fresh.manifest.model, max_prompt=192, kept=Range(1, 32, 64), capacity=256)
    target = build(fresh, limits=limits, compute=["8.9"])
    assert (target.manifest.limits.prefix_capacity, target.manifest.limits.suffix_capacity) == (256, 128)
    inputs = {tensor.name: tensor.shape for tensor in target.manifest.engines["suffix"].inputs}
    assert inputs[f"past_key_values.{fresh.manifest.k}.key"][2] == 128


def source_bytes(bundle: Bundle, graph: str) -> int:
    path = bundle.manifest.graphs[graph].path
    return sum(file.bytes for file in bundle.manifest.files if file.path in (path, f"{path}.data"))


def test_progress_only_goes_forward_and_ends_with_the_last_graph(fresh: Bundle, rtx: Library) -> None:
    seen: list[tuple[str, int, int]] = []
    build(fresh, limits=small(fresh), compute=["8.6"], on_step=lambda *step: seen.append(step))
    assert [step[1] for step in seen] == sorted(step[1] for step in seen)
    assert {step[2] for step in seen} == {100 * len(fresh.manifest.graphs)}
    graphs = list(dict.fromkeys(step[0].split(":")[0] for step in seen))
    assert sorted(graphs) == sorted(fresh.manifest.graphs)
    sizes = [source_bytes(fresh, graph) for graph in graphs]
    assert sizes == sorted(sizes, reverse=True)  # the largest first, for the sake of peak memory


def test_fp32_builds_if_it_may_be_decomposed(bundle: Bundle, tmp_path: Path, rtx: Library) -> None:
    copy = copied(bundle, tmp_path / "bundle")
    target = build(copy, limits=small(copy), compute=["8.6"], decomposable=True)
    assert target.manifest.precision == "fp32"
    assert "decomposable" in target.manifest.flags


@pytest.mark.parametrize("number", ["8.7", "9.0", "11.0"])
def test_an_unsupported_capability_names_the_supported_ones_and_the_other_backend(
    half: Bundle, number: str, rtx: Library
) -> None:
    with pytest.raises(InputError, match=rf"7\.5, 8\.0.*found {number}.*--backend tensorrt"):
        build(half, compute=[number])


@pytest.mark.skipif(importlib.util.find_spec("tensorrt") is not None, reason="tensorrt is installed")
def test_a_missing_library_says_how_to_install_it(half: Bundle) -> None:
    with pytest.raises(UnavailableError, match=r"pip install 'fastv-trt\[tensorrt\]'"):
        build(half, "tensorrt")


def test_an_unknown_backend_is_refused(half: Bundle) -> None:
    with pytest.raises(InputError, match="tensorrt, tensorrt-rtx"):
        build(half, "openvino")


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "c:d"])
def test_a_target_name_is_a_plain_folder_name(half: Bundle, name: str, rtx: Library) -> None:
    with pytest.raises(InputError, match="plain folder name"):
        build(half, name=name)


def test_an_existing_target_is_not_overwritten(built: tuple[Bundle, Target]) -> None:
    bundle, target = built
    with pytest.raises(InputError, match="not to exist"):
        build(bundle, name=target.name)


def test_a_full_disk_leaves_nothing_behind(fresh: Bundle, rtx: Library) -> None:
    """A real failed write: the child process may write files of at most 1 MiB, and plans are larger."""
    program = (
        "import sys, resource; from fastv_trt.bundle import Bundle; from fastv_trt.engines import build\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "build(Bundle.open(sys.argv[1]), compute=['8.6'])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(fresh.path)], capture_output=True, text=True, check=False)
    assert "nothing was left there" in done.stderr
    assert list((fresh.path / targets.FOLDER).iterdir()) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_an_interrupted_build_leaves_nothing_behind(fresh: Bundle, rtx: Library) -> None:
    def stop(step: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(fresh, compute=["8.6"], on_step=stop)
    assert list((fresh.path / targets.FOLDER).iterdir()) == []


def test_an_altered_plan_is_refused(fresh: Bundle, rtx: Library) -> None:
    target = build(fresh, limits=small(fresh), compute=["8.6"])
    plan = target.plan_path("prefix")
    content = bytearray(plan.read_bytes())
    content[1000] ^= 1
    plan.write_bytes(content)
    with pytest.raises(BundleError, match="altered"):
        Target.open(target.path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema_version": 99}', '{"schema_version": 1}'])
def test_a_damaged_description_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / targets.DESCRIPTION).write_text(content)
    with pytest.raises(BundleError):
        Target.open(tmp_path)


def test_engines_lists_what_runs_and_why_not(built: tuple[Bundle, Target], rtx: Library) -> None:
    bundle, target = built
    ampere = Gpu(0, "NVIDIA RTX A2000", "8.6", 12 << 30)
    hopper = Gpu(0, "NVIDIA H200", "9.0", 139 << 30)
    assert [found["runs_here"] for found in engines(bundle, Gpus((ampere,), "13.0", None))] == [True]
    assert "compiled for compute capability 8.6, and here is NVIDIA H200 (9.0)" in str(
        engines(bundle, Gpus((hopper,), "13.0", None))
    )
    nothing = engines(bundle, Gpus((), None, "CUDA lists no GPU"))[0]
    assert nothing["obstacles"] == ["no NVIDIA GPU (CUDA lists no GPU)"]
    json.dumps(nothing)
    assert target.obstacles(bundle, Gpus((ampere,), "13.0", None), "1.0.0") == [
        f"compiled with tensorrt-rtx {rtx.version}, and 1.0.0 is installed; build again"
    ]


def test_plans_of_another_export_are_stale(built: tuple[Bundle, Target], half: Bundle, bundle: Bundle) -> None:
    target = built[1]
    assert target.stale(half) == []
    assert any("onnx/prefix.onnx has changed" in reason for reason in target.stale(bundle))


def test_the_doctor_describes_this_machine(rtx: Library) -> None:
    content = machine()
    json.dumps(content)
    assert content["libraries"]["tensorrt-rtx"]["builds_for"] == list(OFFERED)
    assert bool(content["gpus"]) != bool(content["no_gpu_because"])
    assert nvidia.gpus().devices == tuple(Gpu(**gpu) for gpu in content["gpus"])


def test_errors_of_the_compiling_process_come_back_as_they_were(fresh: Bundle, rtx: Library) -> None:
    (fresh.path / "onnx" / "vision.onnx").write_bytes(b"not onnx")
    with pytest.raises(BundleError, match="expected an ONNX graph"):
        build(fresh)
    assert issubclass(BundleError, FastVError)
