"""Samples are read strictly, and every complaint names its line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastv_trt.calibration.samples import Samples
from fastv_trt.cli.demo import demo_home
from fastv_trt.errors import InputError

Write = Callable[..., Path]
GOOD = {"image": "0.png", "prompt": "what?", "answer": "a"}


def test_the_shipped_samples_have_answers() -> None:
    samples = Samples.read(demo_home() / "samples" / "samples.jsonl")
    assert len(samples.items) == 12 and samples.answered
    assert samples.items[0].answers == ("8",)


def test_several_pictures_and_several_right_answers(write_samples: Write) -> None:
    path = write_samples([{"images": ["0.png", "1.png"], "prompt": "which?", "answer": ["a", "b"]}, "", GOOD])
    samples = Samples.read(path)
    assert [len(sample.images) for sample in samples.items] == [2, 1]
    assert samples.items[0].answers == ("a", "b")


def test_a_folder_of_pictures_asks_one_prompt(write_samples: Write) -> None:
    path = write_samples([])
    path.unlink()
    samples = Samples.read(path.parent, prompt="describe")
    assert len(samples.items) == 12 and not samples.answered
    assert {sample.prompt for sample in samples.items} == {"describe"}


def test_the_digest_changes_with_a_picture(write_samples: Write) -> None:
    path = write_samples([GOOD])
    before = Samples.read(path).sha256
    assert Samples.read(path).sha256 == before
    (path.parent / "0.png").write_bytes((path.parent / "1.png").read_bytes())
    assert Samples.read(path).sha256 != before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 .*found:"),
        ("[1]", "line 2 .*found a list"),
        ({"image": "0.png"}, "line 2 .*'prompt'"),
        ({"prompt": "what?", "answer": "a"}, "either image or images in line 2 .*neither"),
        ({**GOOD, "images": ["1.png"]}, "line 2 .*both"),
        ({**GOOD, "image": "none.png"}, r"none.png \(line 2 "),
        ({**GOOD, "answer": 7}, "line 2 .*'answer'.*7"),
        ({**GOOD, "answer": [1]}, "line 2 .*'answer'"),
        ({**GOOD, "answer": ""}, "line 2 .*empty"),
        ({**GOOD, "answer": []}, "line 2 .*empty"),
        ({**GOOD, "colour": "red"}, "line 2 .*'colour'"),
        ({"video": "a.mp4", "prompt": "what?", "answer": "a"}, "line 2 .*video"),
        ({"image": "0.png", "prompt": "what?"}, "no answer in line 2 .* one in line 1"),
    ],
)
def test_bad_lines_are_named(write_samples: Write, line: dict[str, Any] | str, message: str) -> None:
    path = write_samples([GOOD, line])
    with pytest.raises(InputError, match=message):
        Samples.read(path)


def test_nothing_to_read_is_refused(write_samples: Write, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found no lines"):
        Samples.read(write_samples([]))
    with pytest.raises(InputError, match="found nothing"):
        Samples.read(tmp_path / "none.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="found no pictures"):
        Samples.read(tmp_path / "empty")
