"""The demo model: real weights, real answers, and the whole command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastv_trt.bundle import Bundle
from fastv_trt.cli.demo import demo, demo_home
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Limits, Runtime
from fastv_trt.verify import verify

CHECKPOINT = demo_home() / "checkpoint"


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `fastv-trt demo` leaves behind."""
    out = tmp_path_factory.mktemp("demo")
    demo(out=out, k=2, threads=None, json=True)
    return out


@pytest.fixture(scope="module")
def runtime(output: Path) -> Runtime:
    return Runtime.load(output / "bundle-k2")


def test_the_demo_answers_with_half_and_three_quarters_dropped(output: Path) -> None:
    results = json.loads((output / "results.json").read_text())
    assert [row["ratio"] for row in results["summary"]] == [0.0, 0.5, 0.75]
    for row in results["summary"]:
        assert row["questions"] == 12
        assert row["right"] >= 10
    assert [row["kept_tokens"] for row in results["summary"]] == [144, 72, 36]
    assert results["summary"][2]["kv_ratio"] < results["summary"][1]["kv_ratio"] < 0.8
    assert len(list(output.glob("kept-*.png"))) == 6


def test_the_demo_bundle_matches_its_checkpoint(output: Path) -> None:
    report = verify(Bundle.open(output / "bundle-k2"), CHECKPOINT, ratios=(0.0, 0.5, 0.9), prompt="What digit is red?")
    assert report.passed


@pytest.mark.slow
@pytest.mark.parametrize("k", [0, 1, 3, 5])
def test_the_demo_model_matches_wherever_it_is_cut(tmp_path: Path, k: int) -> None:
    from fastv_trt.export import export

    report = verify(export(CHECKPOINT, tmp_path / "b", k=k).bundle, CHECKPOINT, prompt="What digit is red?")
    assert report.passed
    assert max(case.logit for case in report.cases) <= 1e-4


def test_last_query_finds_the_digit_and_random_does_not(runtime: Runtime) -> None:
    """FastV's claim in small: dropping 90 % by attention costs little, dropping them at random much."""
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "tiny_llava"))
    try:
        from task import Scenes, question
    finally:
        sys.path.pop(0)
    source = Scenes("held-out", seed=77)
    asked = []
    for _ in range(60):
        scene = source.draw()
        asked.append((runtime.request(question(scene.colours[0]), [scene.image]), str(scene.digits[0])))

    def right(pruning: Pruning) -> int:
        return sum(runtime.answers([request], pruning, Limits(2))[0].text == answer for request, answer in asked)

    unpruned = right(Pruning(ratio=0))
    assert unpruned >= 54
    assert right(Pruning(ratio=0.75)) >= unpruned - 4
    assert right(Pruning(ratio=0.9, ranking="random")) < right(Pruning(ratio=0.9)) - 5
