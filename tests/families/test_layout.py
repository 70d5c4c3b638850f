"""What the host computes from the size of a picture, against transformers' own code, over many sizes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastv_trt.families import Media, Numbers, anyres, by_name, join, mrope, packed

torch = pytest.importorskip("torch")

SIDE, TILE = 24, 336
CHOICES = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
ONEVISION = [[336 * h, 336 * w] for h in range(1, 7) for w in range(1, 7)]
quick = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
sizes = st.integers(8, 3000)


def model_like(choices: list[list[int]]) -> Any:
    vision = SimpleNamespace(image_size=TILE, patch_size=TILE // SIDE)
    return SimpleNamespace(config=SimpleNamespace(vision_config=vision, image_grid_pinpoints=choices))


def numbered(height: int, width: int, choices: list[list[int]]) -> Any:
    """Features that are their own row numbers: what is packed says where it came from."""
    best = anyres.best_resolution(height, width, choices)
    tiles = 1 + best[0] * best[1] // TILE**2
    return torch.arange(tiles * SIDE * SIDE, dtype=torch.float64).reshape(tiles, SIDE * SIDE, 1)


def next_settings(choices: list[list[int]], **more: Any) -> dict[str, Any]:
    return {"tile": TILE, "side": SIDE, "tokens": SIDE * SIDE, "choices": choices, "image": "i", **more}


def check_next(height: int, width: int) -> None:
    from transformers import LlavaNextModel

    features = numbered(height, width, CHOICES)
    wanted, (length,) = LlavaNextModel.pack_image_features(
        model_like(CHOICES), [features], torch.tensor([[height, width]]), "default", torch.tensor([-1.0]).double()
    )
    outputs = {"pixel_values": np.zeros((1, len(features), 1)), "image_sizes": np.array([[height, width]])}
    media = by_name("llava_next").image(next_settings(CHOICES), outputs)
    index = media.inputs["feature_index"]
    assert isinstance(index, Numbers)
    assert np.array_equal(index.values, wanted[0][:, 0].numpy())
    assert media.sizes == (length,) == (len(media.text),)


@pytest.mark.parametrize("height", [335, 336, 337, 338])
@pytest.mark.parametrize("width", [335, 336, 337, 338])
def test_features_equal_placeholders_around_the_tile_size(height: int, width: int) -> None:
    """The symptom of transformers' issue 34625: counts that differ by a row at some sizes."""
    check_next(height, width)


@pytest.mark.parametrize(("height", "width"), [(1, 3000), (3000, 1), (20, 4000), (672, 672), (1008, 336)])
def test_extreme_shapes_pack_as_transformers_does(height: int, width: int) -> None:
    check_next(height, width)


@quick
@given(height=sizes, width=sizes)
def test_any_size_packs_as_transformers_does(height: int, width: int) -> None:
    check_next(height, width)


@quick
@given(height=sizes, width=sizes)
def test_large_grids_shrink_as_transformers_does(height: int, width: int) -> None:
    from transformers import LlavaOnevisionModel

    features = numbered(height, width, ONEVISION)
    newline = torch.tensor([-7.0]).double()
    wanted, (length,) = LlavaOnevisionModel.pack_image_features(
        model_like(ONEVISION), [features], torch.tensor([[height, width]]), newline, "anyres_max_9"
    )
    outputs = {"pixel_values": np.zeros((1, len(features), 1)), "image_sizes": np.array([[height, width]])}
    media = by_name("llava_onevision").image(next_settings(ONEVISION, most=9), outputs)
    index, weights = media.inputs["feature_index"], media.inputs["feature_weights"]
    assert isinstance(index, Numbers) and isinstance(weights, np.ndarray)
    rows = np.append(features.reshape(-1).numpy(), -7.0)  # -1 is the newline
    assert np.allclose((rows[index.values] * weights).sum(-1), wanted[0][:, 0].numpy(), rtol=1e-6, atol=1e-3)
    assert media.sizes == (length,) == (len(media.text),)


def test_pictures_are_joined_without_mixing_their_rows() -> None:
    one = Media("", (2,), {"index": Numbers(np.array([0, 1, -1]), 2), "x": np.array([1])})
    other = Media("", (3,), {"index": Numbers(np.array([2, -1]), 3, 1), "x": np.array([2, 3])})
    joined = join([one, other, one])
    assert joined["index"].tolist() == [0, 1, -1, 4, -1, 5, 6, -2]
    assert joined["x"].tolist() == [1, 2, 3, 1]


grids = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(0, 5)), min_size=0, max_size=5
)


def sequence(runs: list[tuple[int, int, int, int]], image: int) -> tuple[list[int], list[int]]:
    """Ids and token types of a prompt with text before each run of image tokens, and after the last."""
    ids, types = [9], [0]
    for times, rows, columns, words in runs:
        ids += [9] * (words + 1) + [image] * (times * rows * columns)
        types += [0] * (words + 1) + [1 if image == 4 else 2] * (times * rows * columns)
    return [*ids, 9, 9], [*types, 0, 0]


@pytest.mark.parametrize("kind", ["Qwen2VLModel", "Qwen2_5_VLModel", "Qwen3VLModel"])
@quick
@given(runs=grids)
def test_positions_of_pictures_are_transformers(kind: str, runs: list[tuple[int, int, int, int]]) -> None:
    runs = [(1, rows, columns, words) for _, rows, columns, words in runs]
    check_positions(kind, runs, image=4, interval=1.0)


@pytest.mark.parametrize(
    ("kind", "second"), [("Qwen2VLModel", 1.0), ("Qwen2_5_VLModel", 0.7), ("Qwen2_5_VLModel", 2.0)]
)
@quick
@given(runs=grids)
def test_positions_of_clips_are_transformers(kind: str, second: float, runs: list[tuple[int, int, int, int]]) -> None:
    check_positions(kind, runs, image=5, interval=1.0 if kind == "Qwen2VLModel" else 25 * second, second=second)


def check_positions(
    kind: str, runs: list[tuple[int, int, int, int]], image: int, interval: float, second: float = 1.0
) -> None:
    import transformers

    model = getattr(transformers, kind)
    vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=25)
    own = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
    own.get_vision_position_ids = lambda *a, **k: model.get_vision_position_ids(own, *a, **k)
    ids, types = sequence(runs, image)
    thw = torch.tensor([[t, 2 * h, 2 * w] for t, h, w, _ in runs]) if runs else None
    given = {"image_grid_thw" if image == 4 else "video_grid_thw": thw}
    if "2_5" in kind and image == 5:
        given["second_per_grid_ts"] = [second] * len(runs)
    wanted, delta = model.get_rope_index(own, torch.tensor([ids]), torch.tensor([types]), **given)
    media = [Media("", (t * h * w,), {}, ((t, h, w),), interval) for t, h, w, _ in runs]
    found = mrope(len(ids), np.flatnonzero(np.array(ids) == image), media)
    assert np.array_equal(found, wanted[:, 0].numpy())
    assert found.max() + 1 - len(ids) == int(delta)  # where decode goes on


@quick
@given(times=st.integers(1, 3), rows=st.integers(1, 12), columns=st.integers(1, 12), side=st.integers(1, 5))
def test_windows_and_segments_are_transformers(times: int, rows: int, columns: int, side: int) -> None:
    from transformers import vision_utils

    grid = torch.tensor([[times, 2 * rows, 2 * columns]])
    order, ends = vision_utils.get_vision_window_index(grid, 2, window_size=side * 2 * 8, patch_size=8)
    window, count = packed.windows(times, rows, columns, side)
    assert len(ends) - 1 == count == len(set(window.tolist()))
    pieces = [set(order[a // 4 : b // 4].tolist()) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
    assert sorted(map(sorted, pieces)) == sorted(np.flatnonzero(window == i).tolist() for i in range(count))
    lengths = np.diff(vision_utils.get_vision_cu_seqlens(grid).numpy()) // 4
    assert np.array_equal(packed.segments(times, rows * columns), np.repeat(np.arange(times), lengths))
    places = vision_utils.get_vision_position_ids(grid, 2)
    assert np.array_equal(packed.places(times, 2 * rows, 2 * columns, 2).reshape(-1, 2), places.numpy())


@quick
@given(rows=st.integers(1, 12), columns=st.integers(1, 12), side=st.integers(2, 9))
def test_position_tables_are_resized_as_transformers_does(rows: int, columns: int, side: int) -> None:
    from transformers import vision_utils

    grid = torch.tensor([[1, 2 * rows, 2 * columns]])
    index, weights = vision_utils.get_vision_interpolation_indices_and_weights(
        grid, side, mode="bilinear", align_corners=True, spatial_merge_size=2
    )
    own_index, own_weights = packed.interpolation(2 * rows, 2 * columns, side, 2)
    table = np.random.default_rng(0).normal(size=side * side)
    wanted = (table[index.numpy()] * weights.numpy()).sum(-1)
    assert np.allclose((table[own_index] * own_weights).sum(-1).reshape(-1), wanted, atol=1e-5)


def test_the_table_in_the_readme_is_the_recorded_one() -> None:
    from tests.families.table import ROOT, with_table

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = json.loads((ROOT / "docs" / "families.json").read_text(encoding="utf-8"))
    assert with_table(readme, rows) == readme
