"""The picture of kept tokens: grids, dimming, and a file that can be opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastv_trt.errors import InputError
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Limits, Runtime
from fastv_trt.runtime.picture import dimmed, draw_kept, grid_of
from tests.conftest import picture


@pytest.mark.parametrize(
    ("tokens", "height", "width", "grid"),
    [
        (576, 336, 336, (24, 24)),
        (144, 96, 96, (12, 12)),
        (200, 100, 200, (10, 20)),
        (7, 10, 10, (1, 7)),
        (1, 5, 5, (1, 1)),
    ],
)
def test_the_grid_has_the_pictures_shape(tokens: int, height: int, width: int, grid: tuple[int, int]) -> None:
    assert grid_of(tokens, height, width) in (grid, grid[::-1])
    assert grid_of(tokens, height, width) == grid or height == width


def test_pruned_patches_fade_and_kept_ones_stay() -> None:
    shown = np.zeros((4, 6, 3), dtype=np.float32)
    kept = np.array([[True, False, True], [False, True, False]])
    result = dimmed(shown, kept)[..., 0]
    assert np.array_equal(result == 0, np.kron(kept, np.ones((2, 2))).astype(bool))
    assert result.max() == pytest.approx(0.85)


def test_it_draws_with_and_without_scores(runtime: Runtime, tmp_path: Path) -> None:
    request = runtime.request("what?", [picture(0), picture(1)])
    widths = []
    for ranking in ("last-query", "uniform"):
        answer = runtime.answers([request], Pruning(ratio=0.5, ranking=ranking), Limits(1))[0]
        draw_kept(request, answer.prefill, tmp_path / f"{ranking}.png", "a title")
        with Image.open(tmp_path / f"{ranking}.png") as drawn:
            widths.append(drawn.width)
    assert widths[0] > widths[1]  # the heat map is a third column


def test_what_cannot_be_drawn_is_refused(runtime: Runtime, tmp_path: Path) -> None:
    text = runtime.request("hello")
    answer = runtime.answers([text], Pruning(ratio=0), Limits(1))[0]
    with pytest.raises(InputError, match="to draw, found none"):
        draw_kept(text, answer.prefill, tmp_path / "a.png")
    request = runtime.request("what?", [picture(0)])
    answer = runtime.answers([request], Pruning(ratio=0.5), Limits(1))[0]
    with pytest.raises(InputError, match="can be written"):
        draw_kept(request, answer.prefill, tmp_path / "a.unknown")
