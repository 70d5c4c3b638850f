"""Comparing engines with ONNX Runtime, on a SIMULATED device: the engines are the same ONNX graphs, so all is equal."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fastv_trt import targets
from fastv_trt.bundle import Bundle
from fastv_trt.errors import InputError, UnavailableError
from fastv_trt.nvidia import Gpu, Gpus
from fastv_trt.runtime import Runtime
from fastv_trt.runtime import trt as device_file
from fastv_trt.targets import SelfTestRecord, Target
from fastv_trt.verify import verify_engine
from tests.conftest import Run
from tests.engines.test_simulation import device

pytest.importorskip("tests.engines.simulation", reason="tensorrt-rtx and cuda-python are not installed")


def test_every_output_of_every_graph_is_compared_at_prefill_and_decode(built: tuple[Bundle, Target]) -> None:
    simulated = device(built)
    report = verify_engine(built[0], simulated, target="small", limits=built[1].manifest.limits)
    seen = {(one.graph, one.kind, one.output) for one in report.differences}
    assert seen == {
        ("vision", "prefill", "image_features"),
        *((graph, kind, "caches") for graph in ("prefix", "suffix") for kind in ("prefill", "decode")),
        *(("prefix", kind, output) for output in ("hidden_states", "query_states") for kind in ("prefill", "decode")),
        *(("suffix", kind, "logits") for kind in ("prefill", "decode")),
        *((f"rank-{name}", "prefill", "scores") for name in ("last-query", "received")),
    }
    assert report.passed
    assert all(one.cosine > 0.999999 and one.norm < 1e-6 for one in report.differences)
    assert simulated.cuda.runtime.launches > 0  # captured decode steps were compared too


@pytest.mark.parametrize(
    ("graph", "output", "broken"),
    [
        ("prefix", "hidden_states", lambda a: a * np.float16(1.05)),  # a dropped scale, which cosine alone hides
        ("suffix", "logits", lambda a: a[..., ::-1].copy()),
        ("vision", "image_features", lambda a: np.full_like(a, np.nan)),
    ],
)
def test_a_wrong_engine_is_named(
    built: tuple[Bundle, Target],
    monkeypatch: pytest.MonkeyPatch,
    graph: str,
    output: str,
    broken: Callable[[Any], Any],
) -> None:
    simulated = device(built)
    run = device_file.TrtSession.run

    def wrong(self: Any, tensors: Any) -> Any:
        found = run(self, tensors)
        if self.name == graph:
            self.device.write(found[output], broken(self.device.download(found[output])))
        return found

    monkeypatch.setattr(device_file.TrtSession, "run", wrong)
    report = verify_engine(built[0], simulated, ratios=(0.5,))
    bad = {(one.graph, one.output) for one in report.differences if not report.good(one)}
    assert not report.passed
    assert bad == {(graph, output)}  # and nothing that comes after it


def test_a_prompt_beyond_the_limits_is_refused(built: tuple[Bundle, Target]) -> None:
    limits = built[1].manifest.limits.model_copy(update={"max_prompt": 3})
    with pytest.raises(InputError, match="shorter --prompt"):
        verify_engine(built[0], device(built), limits=limits)


def test_a_failed_self_test_is_an_obstacle_until_it_is_run_again(
    built: tuple[Bundle, Target], cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, target = built
    ampere = Gpus((Gpu(0, "NVIDIA RTX A2000", "8.6", 12 << 30),), "13.0", None)
    version = target.manifest.library_version
    bad = SelfTestRecord(tool="t", device="d", outputs=1, min_cosine=0.1, max_norm_ratio_error=0.5, passed=False)
    try:
        target.with_self_test(bad)
        assert Target.open(target.path).self_test() == bad
        assert any("self-test failed" in text for text in target.obstacles(bundle, ampere, version))
        assert target.obstacles(bundle, ampere, version, trust_self_test=False) == []

        def simulated(bundle: Bundle, name: str | None = None, *, trust_self_test: bool = True) -> Any:
            assert not trust_self_test
            return device(built)

        monkeypatch.setattr(device_file, "device", simulated)
        code, out, err = cli("verify", bundle.path, "--engine", target.name, "--ratios", "0.5", "--json")
        assert code == 0, err
        assert json.loads(out)["passed"] is True
        assert target.obstacles(bundle, ampere, version) == []
    finally:
        (target.path / targets.SELF_TEST).unlink(missing_ok=True)


def test_without_a_gpu_it_says_so_and_exits_3(built: tuple[Bundle, Target], cli: Run) -> None:
    if device_file.nvidia.gpus().devices:
        pytest.skip("this machine has a GPU")
    bundle, target = built
    for command in (
        ("verify", bundle.path, "--engine", target.name),
        ("run", bundle.path, "-p", "what?", "--engine", "auto"),
    ):
        code, out, err = cli(*command)
        assert (code, out) == (3, "")
        assert "no NVIDIA GPU" in err


@pytest.mark.parametrize("arguments", [(), ("--against", "x", "--engine", "y")])
def test_verify_wants_one_of_checkpoint_and_engine(
    built: tuple[Bundle, Target], cli: Run, arguments: tuple[str, ...]
) -> None:
    code, _, err = cli("verify", built[0].path, *arguments)
    assert code == 2
    assert "expected --against CHECKPOINT or --engine TARGET" in err


def test_an_engine_and_a_provider_exclude_each_other(built: tuple[Bundle, Target]) -> None:
    with pytest.raises(InputError, match="--device or --engine"):
        Runtime.load(built[0], device="cuda", engine="auto")
    with pytest.raises(InputError, match="found small; make them with build"):
        Runtime.load(built[0], engine="nothing")
    if not device_file.nvidia.gpus().devices:
        with pytest.raises(UnavailableError, match="no NVIDIA GPU"):
            Runtime.load(built[0], engine="auto")
