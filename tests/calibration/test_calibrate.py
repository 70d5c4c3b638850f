"""The whole command on a small random model: what it measures, recommends, writes, resumes and refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fastv_trt.bundle import Bundle
from fastv_trt.calibration import Budget, Grid, Samples, Settings, calibrate
from fastv_trt.calibration.budget import Outcome
from fastv_trt.calibration.measure import Bench
from fastv_trt.calibration.metrics import kl_divergence
from fastv_trt.calibration.points import Point
from fastv_trt.calibration.recommend import write_operating_point
from fastv_trt.calibration.state import Measured
from fastv_trt.calibration.table import Table, tabulate
from fastv_trt.errors import FastVError, InputError
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Limits, Runtime
from tests.conftest import Run

LOOSE = Settings(Budget.parse("kl <= 100"), decision="estimate", new_tokens=3)


@pytest.fixture
def copy(bundle: Bundle, tmp_path: Path) -> Bundle:
    """A bundle that may be written to."""
    return Bundle.open(shutil.copytree(bundle.path, tmp_path / "bundle"))


def test_outcomes_are_those_of_plain_runs(runtime: Runtime, plain: Path) -> None:
    """Vision and prefix run once for all points; the oracle runs every point from the start."""
    sample = Samples.read(plain).items[0]
    points = [
        Point(2, Pruning(ratio=0.0)),
        Point(2, Pruning(ratio=0.5)),
        Point(2, Pruning(ratio=0.9, ranking="uniform")),
    ]
    found = Bench(runtime, None, 4).outcomes(sample, points, turn=1)
    request = runtime.request(sample.prompt, list(sample.images))
    answers = [runtime.answers([request], p.pruning, Limits(4))[0] for p in points]
    for point, answer in zip(points, answers, strict=True):
        assert found[point].kept == answer.kept_tokens / answer.image_tokens
        assert found[point].match == (answer.tokens == answers[0].tokens)
        expected = kl_divergence(answers[0].prefill.logits, answer.prefill.logits)
        assert found[point].kl == pytest.approx(expected, abs=1e-6)
    assert found[points[0]].kl_forced == pytest.approx(0.0, abs=1e-9)
    assert found[points[2]].kl_forced and found[points[2]].kl_forced > 0


def test_it_recommends_the_cheapest_point_and_makes_it_the_default(copy: Bundle, plain: Path, tmp_path: Path) -> None:
    samples = Samples.read(plain)
    grid = Grid(ratios=(0.5, 1.0), rankings=("last-query", "uniform"), target_keeps=(0.25,))
    found = calibrate(copy, samples, LOOSE, tmp_path / "out", grid=grid)
    names = [row.point.name for row in found.table.rows]
    assert names[:6] == [
        "K=2 last-query R=0%",
        "K=2 last-query R=50%",
        "K=2 last-query R=100%",
        "K=2 last-query R=75%",
        "K=2 uniform R=50%",
        "K=2 uniform R=100%",
    ]
    assert names[7].startswith("K=2 last-query mass=")
    best = found.table.recommended
    assert best is not None
    assert best.ttft_ratio.estimate == min(row.ttft_ratio.estimate for row in found.table.candidates)
    comparison = found.table.comparisons[0]
    assert comparison.fixed.point.amount == "R=75%" and comparison.adaptive.kept <= 0.26
    written = write_operating_point(found, samples)
    again = Bundle.open(copy.path)
    assert again.manifest.operating_point == written.manifest.operating_point
    assert again.manifest.operating_point is not None
    assert Runtime.load(again).default_pruning == best.point.pruning
    assert {"state.json", "report.json", "report.md"} <= {p.name for p in (tmp_path / "out").iterdir()}


def test_a_calibration_goes_on_where_it_stopped(
    bundle: Bundle, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, grid, out = Samples.read(plain), Grid(ratios=(0.5,), rankings=("uniform",)), tmp_path / "out"
    run = Bench.outcomes
    calls = 0

    def interrupted(*arguments: object) -> dict[Point, Outcome]:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return run(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Bench, "outcomes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        calibrate(bundle, samples, LOOSE, out, grid=grid)
    before = json.loads((out / "state.json").read_text())["cuts"]["2"]["outcomes"]
    assert {len(rows) for rows in before.values()} == {4}
    calls = 100
    found = calibrate(bundle, samples, LOOSE, out, grid=grid)
    assert calls == 100 + 1 + len(samples.items) - 4
    after = json.loads((out / "state.json").read_text())["cuts"]["2"]["outcomes"]
    assert all(after[name][:4] == rows for name, rows in before.items())
    assert {row.samples for row in found.table.rows} == {12}
    with pytest.raises(InputError, match="found another grid; remove it"):
        calibrate(bundle, samples, LOOSE, out, grid=Grid(ratios=(0.9,), rankings=("uniform",)))


def test_points_that_cannot_win_are_given_up(
    bundle: Bundle, write_samples: Callable[..., Path], tmp_path: Path
) -> None:
    lines = [{"image": f"{i % 12}.png", "prompt": f"what, {i}?"} for i in range(60)]
    samples = Samples.read(write_samples(lines))
    settings = Settings(Budget.parse("agreement >= 99"), decision="estimate", new_tokens=3)
    found = calibrate(bundle, samples, settings, tmp_path / "out", grid=Grid(ratios=(0.04, 1.0), rankings=("uniform",)))
    rows = {row.point.amount: row for row in found.table.rows}
    assert (rows["R=100%"].cut, rows["R=100%"].samples) == (True, 50)
    assert (rows["R=0%"].cut, rows["R=0%"].samples) == (False, 60)
    assert rows["R=100%"] not in found.table.front
    with pytest.raises(FastVError, match="the best is K=2 uniform R=4% with"):
        write_operating_point(found, samples)


def test_the_front_holds_what_nothing_else_beats() -> None:
    """Against the definition, on random rows."""
    rng = np.random.default_rng(3)
    points = [Point(1, Pruning(ratio=r)) for r in np.linspace(0, 1, 30).round(4).tolist()]
    outcomes = {
        p.name: [Outcome(None, bool(rng.random() < 0.7), 0.0, 0.0, 1.0, float(rng.uniform(1, 2)))] * 3 for p in points
    }
    budget = Budget.parse("agreement >= 50")
    table = Table(tuple(tabulate(points, Measured(None, outcomes), budget, 0.95)), budget, "estimate", 0.95, 3)
    place = {row.point.name: (row.ttft_ratio.estimate, -row.quality(budget)) for row in table.rows}
    beaten = {a for a, x in place.items() if any(y[0] <= x[0] and y[1] <= x[1] and y != x for y in place.values())}
    assert {row.point.name for row in table.front} == set(place) - beaten


def test_the_command_validates_draws_and_writes(
    cli: Run, copy: Bundle, write_samples: Callable[..., Path], tmp_path: Path
) -> None:
    lines = [{"image": f"{i}.png", "prompt": "what?", "answer": "q"} for i in range(12)]
    samples = write_samples(lines)
    others = write_samples([{**line, "prompt": "and now?"} for line in lines], "others.jsonl")
    arguments = ["--budget", "kl <= 100", "--decide", "estimate", "--max-new-tokens", 2, "--ratios", "0.5"]
    arguments += ["--rankings", "last-query", "--metric", "contains", "--out", tmp_path / "out"]
    code, out, err = cli("calibrate", copy.path, samples, "--validate", others, "--json", *arguments)
    content = json.loads(out)
    assert code == 0, err
    assert content["recommended"] == "K=2 last-query R=50%" and content["bundle"] == str(copy.path)
    assert content["validation"]["recommended"] == "K=2 last-query R=50%"
    assert {"tradeoff.png", "heatmap.png"} <= {p.name for p in (tmp_path / "out").iterdir()}
    code, out, _ = cli("inspect", copy.path)
    assert code == 0 and "default: last-query R=50%, calibrated on 12 samples to kl <= 100" in out
    code, out, _ = cli("run", copy.path, "-p", "what?", "-i", tmp_path / "0.png", "--json", "--max-new-tokens", 1)
    assert json.loads(out)["kept_tokens"] == 12
    code, out, _ = cli("run", copy.path, "-p", "what?", "-i", tmp_path / "0.png", "--json", "--mass", 0.5)
    assert 0 < json.loads(out)["kept_tokens"] < 25


def test_another_k_is_exported_from_the_checkpoint(
    cli: Run, copy: Bundle, checkpoints: Callable[..., Path], plain: Path, tmp_path: Path
) -> None:
    arguments = ["--budget", "kl <= 100", "--decide", "estimate", "--max-new-tokens", 1, "--ratios", "0.5"]
    arguments += ["--rankings", "uniform", "--out", tmp_path / "out", "--no-plots", "--k", 1]
    code, _, err = cli("calibrate", copy.path, plain, *arguments)
    assert code == 2 and "expected --checkpoint to cut at K=1" in err
    code, out, err = cli("calibrate", copy.path, plain, *arguments, "--checkpoint", checkpoints())
    assert code == 0 and "recommended: K=1 uniform R=50%" in out
    other = Bundle.open(tmp_path / "out" / "bundle-k1").manifest
    assert other.k == 1 and other.operating_point is not None
    assert Bundle.open(copy.path).manifest.operating_point is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "agreement >= 99.9"], "2703 or more samples"),
        (["--budget", "accuracy >= -1"], "expected answers"),
        (["--budget", "fast"], "found 'fast'"),
        (["--rankings", "dart", "--decide", "estimate"], "export with --rankings"),
        (["--rankings", "external", "--decide", "estimate"], "found 'external'"),
        (["--confidence", "1"], "found 1"),
        (["--decide", "luck"], "found 'luck'"),
        (["--ratios", "0", "--decide", "estimate"], "ratio above 0"),
        (["--target-keep", "2", "--decide", "estimate"], "found 2"),
        (["--k", "1.5", "--decide", "estimate"], "whole numbers"),
    ],
)
def test_bad_calibrations_are_refused(
    cli: Run, bundle: Bundle, plain: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, _, err = cli("calibrate", bundle.path, plain, "--out", tmp_path / "out", *arguments)
    assert code == 2 and message in err, err
    assert not (tmp_path / "out" / "report.json").exists()
