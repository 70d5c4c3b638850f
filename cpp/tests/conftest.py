"""What the C++ tests share: the built programs, demo bundles of every K, and requests as files."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastv_trt.bundle import Bundle
from fastv_trt.runtime import Request, Runtime
from fastv_trt.runtime.request_file import write_request

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "examples" / "tiny_llava" / "checkpoint"
SAMPLES = ROOT / "examples" / "tiny_llava" / "samples"


@pytest.fixture(scope="session")
def checked() -> Path:
    """The build with the sanitizers."""
    return Path(os.environ["FASTV_CPP_CHECKED"])


@pytest.fixture(scope="session")
def installed() -> Path:
    """Where the optimized shared library is installed."""
    return Path(os.environ["FASTV_CPP_INSTALLED"])


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Bundle]:
    """The demo model, cut at K; exported once. Treat it as read-only."""
    from fastv_trt.export import export

    made: dict[int, Bundle] = {}

    def get(k: int) -> Bundle:
        if k not in made:
            made[k] = export(CHECKPOINT, tmp_path_factory.mktemp("bundles") / f"k{k}", k=k).bundle
        return made[k]

    return get


@pytest.fixture(scope="session")
def demo(bundles: Callable[[int], Bundle]) -> Bundle:
    """The demo's own bundle: K = 2."""
    return bundles(2)


@pytest.fixture(scope="session")
def requests(demo: Bundle, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Request, Path]]:
    """Requests and their files: one and two pictures, a text alone, and a later turn."""
    runtime = Runtime.load(demo)
    picture = [SAMPLES / f"digits-{n:02}.png" for n in range(1, 6)]
    made = {
        "white": runtime.request("What digit is white?", [picture[0]]),
        "red": runtime.request("What digit is red?", [picture[1]]),
        "green": runtime.request("USER: <image>\nWhat digit is green ASSISTANT:", [picture[2]], raw=True),
        "two": runtime.request("What digit is red?", [picture[1], picture[3]]),
        "text": runtime.request("What is this?"),
        "later": runtime.processor.request(
            " USER: <image>\nWhat digit is blue ASSISTANT:", [picture[4]], continuing=True
        ),
    }
    folder = tmp_path_factory.mktemp("requests")
    for name, request in made.items():
        write_request(request, folder / name)
    return {name: (request, folder / name) for name, request in made.items()}


@pytest.fixture
def cases(checked: Path, tmp_path: Path) -> Callable[[Path, list[dict[str, Any]]], list[Any]]:
    """Run cases in C++ on a bundle and return what came out; a leak or a sanitizer's finding fails."""

    def run(bundle: Path, given: list[dict[str, Any]]) -> list[Any]:
        (tmp_path / "cases.json").write_text(json.dumps(given))
        command = [checked / "tests" / "fastv_cases", bundle, tmp_path / "cases.json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        assert not done.stderr
        return list(json.loads(done.stdout))

    return run
