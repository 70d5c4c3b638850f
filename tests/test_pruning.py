"""The policy: counts, ties, order, quotas. The oracle is a few lines of plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastv_trt.errors import InputError
from fastv_trt.pruning import (
    Pruning,
    diversity_scores,
    image_positions,
    mass_count,
    random_scores,
    select,
    top,
    uniform_indices,
)

scores_lists = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]), max_size=40)  # few values: many ties


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, list[int], list[int]]:
    """(length, image positions, image sizes)"""
    sizes = draw(st.lists(st.integers(0, 12), max_size=4))
    text = draw(st.integers(1, 20))
    length = text + sum(sizes)
    positions = draw(st.permutations(range(length)).map(lambda p: sorted(p[: sum(sizes)])))
    return length, positions, sizes


@given(st.integers(0, 5000), st.floats(0, 1))
def test_keep_count_is_pythons_round_of_what_remains(tokens: int, ratio: float) -> None:
    assert Pruning(ratio=ratio).keep_count(tokens) == round(tokens * (1 - ratio))


def test_rounding_goes_to_even() -> None:
    assert [Pruning(ratio=0.5).keep_count(m) for m in (1, 3, 5, 7, 576)] == [0, 2, 2, 4, 288]


@given(st.integers(0, 100), st.integers(0, 200))
def test_absolute_keep_is_capped_by_what_there_is(tokens: int, keep: int) -> None:
    assert Pruning(keep=keep).keep_count(tokens) == min(keep, tokens)


@given(scores_lists, st.integers(0, 50))
def test_top_is_by_score_then_by_lowest_index(scores: list[float], count: int) -> None:
    expected = sorted(sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:count])
    assert top(scores, count).tolist() == expected


def test_nan_scores_are_refused() -> None:
    with pytest.raises(InputError, match="NaN"):
        top([0.1, float("nan")], 1)


@given(prompts(), st.floats(0, 1), st.sampled_from(["external", "random", "uniform"]), st.integers(0, 2**64 - 1))
def test_text_is_never_dropped_and_order_is_kept(
    prompt: tuple[int, list[int], list[int]], ratio: float, ranking: str, seed: int
) -> None:
    length, positions, sizes = prompt
    pruning = Pruning(ratio=ratio, ranking=ranking, seed=seed)
    scores = np.random.default_rng(0).random(len(positions))
    keep = select(pruning, length, positions, sizes, scores).tolist()
    assert keep == sorted(set(keep))
    assert set(range(length)) - set(positions) <= set(keep)
    assert len(keep) == length - len(positions) + round(len(positions) * (1 - ratio))
    assert len(keep) - (length - len(positions)) == pruning.kept_tokens(sizes)


@given(prompts(), st.floats(0, 1))
def test_with_a_share_per_image_each_keeps_its_own_best(prompt: tuple[int, list[int], list[int]], ratio: float) -> None:
    length, positions, sizes = prompt
    scores = np.random.default_rng(1).random(len(positions)).astype(np.float32)
    pruning = Pruning(ratio=ratio, ranking="external", scope="image")
    keep = set(select(pruning, length, positions, sizes, scores).tolist())
    start = 0
    for size in sizes:
        own = positions[start : start + size]
        best = sorted(range(size), key=lambda i, s=start: (-scores[s + i], i))[: round(size * (1 - ratio))]
        assert keep & set(own) == {own[i] for i in best}
        start += size


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(0, 200))
def test_an_absolute_keep_is_shared_out_fairly(sizes: list[int], keep: int) -> None:
    shares = Pruning(keep=keep, scope="image").quotas(sizes)
    total = sum(sizes)
    assert sum(shares) == min(keep, total)
    for share, size in zip(shares, sizes, strict=True):
        assert 0 <= share <= size
        assert not total or abs(share - min(keep, total) * size / total) < 1


@given(st.integers(0, 300), st.data())
def test_uniform_indices_are_spread_evenly(tokens: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, tokens))
    chosen = uniform_indices(tokens, count).tolist()
    assert len(set(chosen)) == count
    assert all(0 <= index < tokens for index in chosen)
    gaps = np.diff([-1 - chosen[0] if count else 0, *chosen]) if count else np.array([])
    assert count < 2 or gaps[1:].max() - gaps[1:].min() <= 1


def test_random_scores_are_splitmix64() -> None:
    # Published first outputs of SplitMix64 with seed 1234567.
    outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert random_scores(3, 1234567).tolist() == [np.float32((value >> 40) / 2**24) for value in outputs]


def test_random_depends_on_the_seed_alone() -> None:
    choose = [
        select(Pruning(ratio=0.5, ranking="random", seed=seed), 40, range(30), [30]).tolist() for seed in (1, 1, 2)
    ]
    assert choose[0] == choose[1] != choose[2]


def test_extremes_keep_all_or_no_image_token() -> None:
    assert select(Pruning(ratio=0, ranking="random"), 10, [2, 3, 4], [3]).tolist() == list(range(10))
    assert select(Pruning(ratio=1, ranking="random"), 10, [2, 3, 4], [3]).tolist() == [0, 1, 5, 6, 7, 8, 9]
    assert select(Pruning(keep=0, ranking="uniform"), 5, [2, 3], [2]).tolist() == [0, 1, 4]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ratio": -0.1}, r"\[0, 1\], found -0.1"),
        ({"ratio": 1.5}, r"\[0, 1\], found 1.5"),
        ({"ratio": float("nan")}, r"\[0, 1\], found nan"),
        ({"keep": -1}, "0 or more, found -1"),
        ({"ratio": 0.5, "keep": 3}, "found both"),
        ({"ranking": "best"}, "found 'best'"),
        ({"scope": "page"}, "found 'page'"),
        ({"seed": -1}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"ratio": "a"}, "found 'a'"),
        ({"ratio": True}, "found True"),
        ({"keep": 1.5}, "whole number, found 1.5"),
        ({"keep": "3"}, "whole number, found '3'"),
    ],
)
def test_bad_policies_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Pruning(**values)  # type: ignore[arg-type]


def test_missing_or_misshapen_scores_are_refused() -> None:
    pruning = Pruning(ratio=0.5)
    with pytest.raises(InputError, match="found none"):
        select(pruning, 5, [1, 2], [2])
    with pytest.raises(InputError, match=r"shape \[2\].*found \[3\]"):
        select(pruning, 5, [1, 2], [2], [0.1, 0.2, 0.3])
    with pytest.raises(InputError, match="sum to 2"):
        select(pruning, 5, [1, 2], [3], [0.1, 0.2])


def test_image_positions_come_from_the_token_id() -> None:
    assert image_positions([7, 4, 4, 9, 4, 5], [4]).tolist() == [1, 2, 4]
    assert image_positions([7, 4, 4, 9, 4, 5], [4, 5]).tolist() == [1, 2, 4, 5]
    assert image_positions([7, 9], [4]).tolist() == []


def test_more_than_3840_tokens_can_be_kept() -> None:
    """TensorRT's TopK ends there; the choice is made on the host, so a video's tokens are not limited by it."""
    scores = np.random.default_rng(0).permutation(9000).astype(np.float32)
    keep = select(Pruning(keep=5000), 9010, np.arange(5, 9005), [9000], scores)
    assert len(keep) == 5010
    assert set(np.flatnonzero(scores >= 4000) + 5) == set(keep[(keep >= 5) & (keep < 9005)])


@pytest.mark.parametrize("scope", ["image", "frame"])
def test_every_group_gets_its_share(scope: str) -> None:
    sizes, scores = [10, 4, 6], np.arange(20, dtype=np.float32)  # the last group would win everything
    pruning = Pruning(ratio=0.5, scope=scope)  # type: ignore[arg-type]
    keep = select(pruning, 20, np.arange(20), sizes, scores)
    assert [int(((keep >= a) & (keep < b)).sum()) for a, b in ((0, 10), (10, 14), (14, 20))] == [5, 2, 3]
    assert pruning.kept_tokens(sizes) == len(keep)


@given(scores_lists, st.floats(0.01, 1.0), st.integers(0, 10), st.integers(0, 40))
def test_a_mass_keeps_the_fewest_tokens_that_reach_it(scores: list[float], mass: float, least: int, more: int) -> None:
    most = min(len(scores), least + more)
    least = min(least, most)
    count = mass_count(scores, mass, least, most)
    best = sorted((float(np.float32(s)) for s in scores), reverse=True)
    assert least <= count <= most
    if count < most:
        assert sum(best[:count]) >= mass * sum(best) - 1e-9
    if count > least:
        assert sum(best[: count - 1]) < mass * sum(best) + 1e-9


def test_a_mass_adapts_to_how_concentrated_attention_is() -> None:
    policy = Pruning(mass=0.9, ranking="external", min_keep=2, max_keep=6)
    sharp, flat = np.array([100.0] + [1.0] * 9), np.ones(10)
    assert select(policy, 12, range(10), [10], sharp).tolist() == [0, 1, 10, 11]
    assert select(policy, 12, range(10), [10], flat).tolist() == [0, 1, 2, 3, 4, 5, 10, 11]
    assert policy.kept_tokens([10]) == 6  # what caches are sized to
    assert Pruning(mass=0.5).kept_tokens([10]) == 10
    assert select(Pruning(mass=1.0, ranking="external"), 5, range(4), [4], [1, 0, 2, 0]).tolist() == [0, 2, 4]


def test_a_mass_per_image_is_a_share_of_each_images_attention() -> None:
    policy = Pruning(mass=0.6, ranking="external", scope="image")
    assert select(policy, 6, range(6), [3, 3], [9, 1, 1, 0.1, 0.1, 0.1]).tolist() == [0, 3, 4]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mass": 0.0}, r"\(0, 1\], found 0.0"),
        ({"mass": 1.1}, "found 1.1"),
        ({"mass": float("nan")}, "found nan"),
        ({"mass": "a"}, "found 'a'"),
        ({"mass": 0.5, "ratio": 0.5}, "two of them"),
        ({"mass": 0.5, "ranking": "random"}, "found 'random'"),
        ({"mass": 0.5, "min_keep": 5, "max_keep": 4}, "found 5, 4"),
        ({"max_keep": 4}, "with a mass"),
    ],
)
def test_bad_masses_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Pruning(**values)  # type: ignore[arg-type]


def test_negative_scores_have_no_mass() -> None:
    with pytest.raises(InputError, match="negative"):
        select(Pruning(mass=0.5, ranking="external"), 4, [0, 1], [2], [1.0, -1.0])


@given(st.integers(0, 14), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_diversity_is_the_greedy_max_min_choice(tokens: int, size: int, seed: int) -> None:
    """Against the definition, one choice at a time."""
    features = np.random.default_rng(seed).normal(size=(tokens, size)).astype(np.float32)
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    distance = 1.0 - unit @ unit.T
    order = np.argsort(-diversity_scores(features), kind="stable").tolist()
    chosen: list[int] = []
    for pick in order:
        rest = [i for i in range(tokens) if i not in chosen]
        others = chosen or None
        gain = {i: min((distance[i, j] for j in others or rest if j != i), default=np.inf) for i in rest}
        assert gain[pick] >= max(gain.values()) - 1e-6
        chosen.append(pick)


def test_diversity_leaves_duplicates_for_last() -> None:
    features = np.array([[1, 0], [1, 0], [0, 1], [1, 0], [-1, 0]], np.float32)
    assert sorted(np.argsort(-diversity_scores(features))[:3].tolist()) in ([0, 2, 4], [1, 2, 4], [2, 3, 4])
