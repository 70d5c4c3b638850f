"""Limits refuse what cannot be, all at once; profiles follow from them and fit the graphs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastv_trt.bundle import Bundle
from fastv_trt.engines import BuildLimits, Range, prepare
from fastv_trt.errors import InputError
from fastv_trt.limits import CAPACITY_STEP, profiles


def test_every_problem_is_in_one_message(half: Bundle) -> None:
    with pytest.raises(InputError) as caught:
        BuildLimits.of(
            half.manifest.model, max_prompt=1000, max_images=0, max_batch=0, kept=Range(0, 9, 5), capacity=100
        )
    message = str(caught.value)
    for part in (
        "max-prompt 1000 is not in 1..256",
        "max-images 0",
        "max-batch 0",
        "kept 0:9:5 is not ordered",
        "kept 0:9:5 begins below 1",
        "capacity 100 leaves no slot for new tokens after a prompt of 1000",
        "capacity 100 is not a multiple of 64",
    ):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"max_prompt": 257}, "the model's context"),
        ({"max_prompt": 128, "capacity": 128}, "leaves no slot for new tokens"),
        ({"max_prompt": 128, "kept": Range(1, 64, 129)}, "above max-prompt"),
        ({"capacity": 640}, "beyond the model's context"),
    ],
)
def test_a_limit_that_does_not_fit_is_refused(half: Bundle, changes: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        BuildLimits.of(half.manifest.model, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["1:2", "a:b:c", "1:2:3:4", "-1:2:3", ""])
def test_a_range_that_is_not_three_numbers_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="min:opt:max"):
        Range.parse(text, "--kept")


def test_a_range_is_read_back_as_it_is_written() -> None:
    assert str(Range.parse("1:64:128", "--kept")) == "1:64:128"


@given(prompt=st.integers(1, 256), room=st.integers(1, 5), kept=st.integers(1, 256))
def test_the_suffix_caches_hold_what_is_kept_and_as_many_new_tokens(
    half: Bundle, prompt: int, room: int, kept: int
) -> None:
    capacity = (prompt // CAPACITY_STEP + room) * CAPACITY_STEP
    limits = BuildLimits(prompt, 1, 1, Range(1, 1, kept), capacity)
    if limits.problems(half.manifest.model):
        return
    assert kept + capacity - prompt <= limits.suffix_capacity <= limits.capacity
    assert limits.suffix_capacity % CAPACITY_STEP == 0


def test_kept_lengths_run_from_text_alone_to_the_whole_prompt_in_one_profile(half: Bundle) -> None:
    limits = BuildLimits.of(half.manifest.model)
    prefill = profiles("suffix", limits)[0]
    assert prefill.axes["n"] == Range(1, limits.max_prompt // 2, limits.max_prompt)


def test_decode_profiles_never_pin_the_length_to_one(half: Bundle) -> None:
    for graph in ("prefix", "suffix"):
        decode = profiles(graph, BuildLimits.of(half.manifest.model))[1]
        assert (decode.name, decode.axes["S"], decode.axes["n"]) == ("decode", Range(1, 1, 2), Range(1, 1, 2))


def test_equal_axes_have_equal_ranges_in_every_profile(half: Bundle) -> None:
    limits = BuildLimits.of(half.manifest.model)
    for plan in prepare(half, limits, ("8.6",)):
        for profile in plan.profiles:
            ranges: dict[str, set[tuple[int, int, int]]] = {}
            for name, axes in plan.graph.inputs.items():
                shape = profile.shapes[name]
                for axis, least, best, most in zip(axes, shape.min, shape.opt, shape.max, strict=True):
                    assert least <= best <= most
                    if isinstance(axis, str):
                        ranges.setdefault(axis, set()).add((least, best, most))
            assert all(len(found) == 1 for found in ranges.values())


def test_a_profile_that_lacks_an_axis_is_reported_before_anything_is_compiled() -> None:
    limits = BuildLimits(128, 1, 1, Range(1, 64, 128), 192)
    found = profiles("vision", limits)[0].problems("vision", {"patches": ("P", 64), "cache": (1, "C"), "bad": (-1,)})
    assert "axis 'P'" in found[0]
    assert "not static" in found[1]
    assert "without a name" in found[2]
