"""Greedy, temperature and top-p."""

from __future__ import annotations

import numpy as np
import pytest

from fastv_trt.errors import InputError
from fastv_trt.runtime import Limits, Sampling

LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))


def draws(sampling: Sampling, count: int = 4000) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.bincount([sampling.pick(LOGITS, rng) for _ in range(count)], minlength=4) / count


def test_greedy_takes_the_largest_and_the_lowest_id_of_equals() -> None:
    rng = np.random.default_rng(0)
    assert Sampling().pick(np.array([1.0, 3.0, 3.0], dtype=np.float32), rng) == 1


def test_temperature_one_draws_from_the_softmax() -> None:
    assert np.abs(draws(Sampling(temperature=1.0)) - [0.5, 0.3, 0.15, 0.05]).max() < 0.03


def test_a_low_temperature_is_nearly_greedy() -> None:
    assert draws(Sampling(temperature=0.05))[0] > 0.99


def test_top_p_cuts_the_tail_and_keeps_proportions() -> None:
    shares = draws(Sampling(temperature=1.0, top_p=0.75))
    assert shares[2:].tolist() == [0.0, 0.0]
    assert abs(shares[0] - 0.5 / 0.8) < 0.03


def test_a_tiny_top_p_keeps_one_token() -> None:
    assert draws(Sampling(temperature=1.0, top_p=1e-9), 50).tolist() == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0},
        {"top_p": 1.1},
        {"seed": -1},
    ],
)
def test_bad_values_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(InputError, match="expected"):
        Sampling(**values)  # type: ignore[arg-type]


def test_zero_new_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="1 or more new tokens, found 0"):
        Limits(0)
