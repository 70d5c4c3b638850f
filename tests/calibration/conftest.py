"""Twelve seeded pictures with prompts, and what they are written into."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.conftest import picture

COUNT = 12


@pytest.fixture
def write_samples(tmp_path: Path) -> Callable[..., Path]:
    """Write a JSONL file of as many lines as there are dicts, and `COUNT` pictures 0.png, 1.png ... beside it."""

    def write(lines: list[dict[str, Any] | str], name: str = "samples.jsonl") -> Path:
        for index in range(COUNT):
            Image.fromarray(picture(index)).save(tmp_path / f"{index}.png")
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        (tmp_path / name).write_text(text + "\n")
        return tmp_path / name

    return write


@pytest.fixture
def plain(write_samples: Callable[..., Path]) -> Path:
    """Samples without answers."""
    return write_samples([{"image": f"{i}.png", "prompt": f"what is it, number {i}?"} for i in range(COUNT)])
