"""Bounds hold as often as they say; budgets read and decide as documented."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastv_trt.calibration.adaptive import find_mass, kept_share
from fastv_trt.calibration.budget import Budget, Outcome
from fastv_trt.calibration.metrics import contains, exact, kl_divergence, metric
from fastv_trt.calibration.statistics import bootstrap, paired, samples_needed, wilson
from fastv_trt.errors import InputError


def outcome(quality: float = 1.0, match: bool = True, kl: float = 0.0) -> Outcome:
    return Outcome(quality, match, kl, None, 0.5, 0.01)


@pytest.mark.parametrize(("losses", "gains"), [(0.0, 0.0), (0.01, 0.0), (0.02, 0.02), (0.1, 0.05), (0.3, 0.1)])
@pytest.mark.parametrize("count", [60, 300])
def test_the_paired_bound_covers_the_truth_at_least_as_often_as_it_says(
    losses: float, gains: float, count: int
) -> None:
    rng = np.random.default_rng(5)
    drawn = rng.choice([-1.0, 1.0, 0.0], p=[losses, gains, 1 - losses - gains], size=(2000, count))
    covered = np.mean([paired(row.tolist(), 0.95).low <= gains - losses for row in drawn])
    assert covered >= 0.93


def test_wilson_is_the_textbook_interval() -> None:
    found = wilson([1.0] * 8 + [0.0] * 2, 0.975)  # two-sided 95 %: 0.4902 to 0.9433
    assert (found.low, found.high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson([1.0] * 20, 0.95).high == pytest.approx(1.0)


def test_agreement_everywhere_still_has_a_width() -> None:
    assert paired([0.0] * 100, 0.95).low == pytest.approx(-(1.6449**2) / (100 + 1.6449**2), abs=1e-4)


@given(st.floats(0.001, 0.2), st.sampled_from([0.9, 0.95, 0.99]))
def test_the_samples_needed_are_enough_and_no_fewer(loss: float, confidence: float) -> None:
    needed = samples_needed(loss, confidence)
    assert paired([0.0] * needed, confidence).low >= -loss - 1e-9
    assert needed < 3 or paired([0.0] * (needed - 2), confidence).low < -loss


def test_the_bootstrap_repeats_and_brackets_the_mean() -> None:
    values = np.random.default_rng(0).exponential(size=200).tolist()
    found = bootstrap(values, 0.95)
    assert found == bootstrap(values, 0.95)
    assert found.low < found.estimate < found.high


@pytest.mark.parametrize(
    ("text", "measure", "limit"),
    [
        ("accuracy >= -0.5", "accuracy", -0.5),
        ("agreement>=95", "agreement", 95.0),
        ("kl-forced <= .05", "kl-forced", 0.05),
    ],
)
def test_budgets_are_read(text: str, measure: str, limit: float) -> None:
    budget = Budget.parse(text)
    assert (budget.measure, budget.limit) == (measure, limit)


@pytest.mark.parametrize("text", ["", "accuracy", "accuracy <= -1", "kl >= 1", "speed >= 2", "accuracy >= one"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected"):
        Budget.parse(text)


def test_a_budget_is_decided_by_its_unfavourable_bound() -> None:
    budget = Budget.parse("accuracy >= -1")
    same = [outcome()] * 300
    one_lost = [outcome(0.0), *same[1:]]
    assert budget.kept(budget.interval(same, same, 0.95), "bound")
    assert not budget.kept(budget.interval(one_lost, same, 0.95), "bound")
    assert budget.kept(budget.interval(one_lost, same, 0.95), "estimate")
    assert not budget.hopeless(budget.interval(one_lost, same, 0.999))
    many_lost = [outcome(0.0)] * 60 + same[60:]
    assert budget.hopeless(budget.interval(many_lost, same, 0.999))


def test_too_few_samples_are_told_how_many_it_takes() -> None:
    with pytest.raises(InputError, match=r"expected 539 or more samples .* found 300"):
        Budget.parse("accuracy >= -0.5").check_samples(300, 0.95)
    with pytest.raises(InputError, match="allow a loss"):
        Budget.parse("accuracy >= 0").check_samples(10**6, 0.95)
    with pytest.raises(InputError, match="expected 30 or more"):
        Budget.parse("kl <= 0.1").check_samples(5, 0.95)


def test_answers_are_judged_by_name_or_by_the_users_function(tmp_path: Path) -> None:
    assert (exact(" Seven ", ("seven",)), exact("seven!", ("seven",))) == (1.0, 0.0)
    assert contains("it is seven.", ("eight", "Seven")) == 1.0
    (tmp_path / "own.py").write_text(
        "def half(text, answers): return 0.5\n"
        "def bad(text, answers): return 'x'\n"
        "def fails(text, answers): return 1/0\n"
    )
    assert metric(f"{tmp_path}/own.py:half")("a", ("b",)) == 0.5
    for name, message in [
        (f"{tmp_path}/own.py:bad", "found 'x'"),
        (f"{tmp_path}/own.py:fails", "ZeroDivisionError"),
        (f"{tmp_path}/own.py:none", "found none"),
        (f"{tmp_path}/none.py:f", "found none"),
        ("no_such_module:f", "found: No module"),
        ("close", "found 'close'"),
    ]:
        with pytest.raises(InputError, match=message):
            metric(name)("a", ("b",))


def test_kl_is_that_of_the_distributions() -> None:
    a, b = np.array([0.0, 1.0, 2.0], np.float32), np.array([2.0, 1.0, 0.0], np.float32)
    p, q = np.exp(a) / np.exp(a).sum(), np.exp(b) / np.exp(b).sum()
    assert kl_divergence(a, b) == pytest.approx(float((p * np.log(p / q)).sum()), rel=1e-5)
    assert kl_divergence(a, a + 5) == pytest.approx(0.0, abs=1e-9)


@settings(deadline=None, max_examples=25)
@given(st.floats(0.1, 0.9), st.integers(0, 2**32 - 1))
def test_the_mass_that_is_found_keeps_the_target_on_average(target: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = [rng.exponential(size=int(size)).astype(np.float32) for size in rng.integers(20, 60, 30)]
    mass = find_mass(scores, target)
    assert kept_share(scores, mass, 0) <= target + 0.01
    assert kept_share(scores, mass, 0) >= target - 0.03


def test_a_target_below_the_bounds_is_refused() -> None:
    with pytest.raises(InputError, match=r"target of 0.500 or more"):
        find_mass([np.ones(10, np.float32)], 0.25, least=5)
