"""Golden vectors that the Python and the C++ implementation share: what `select` answers must never drift."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fastv_trt.errors import InputError
from fastv_trt.pruning import Pruning, select
from tests.golden.make_select import PATH

CASES = json.loads(PATH.read_text(encoding="utf-8"))


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 200
    assert len({case["name"] for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_select_answers_as_written(case: dict) -> None:
    scores = case["scores"]
    values = None if scores is None else np.array([np.nan if v is None else v for v in scores], np.float32)

    def answer() -> list[int]:
        pruning = Pruning(**case["pruning"])
        return select(pruning, case["length"], case["positions"], case["image_sizes"], values).tolist()

    if "error" in case:
        with pytest.raises(InputError) as refused:
            answer()
        assert str(refused.value) == case["error"]
    else:
        assert answer() == case["keep_indices"]
