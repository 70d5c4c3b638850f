"""A small fp16 bundle, compiled by the real TensorRT-RTX builder, which needs no GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fastv_trt import nvidia
from fastv_trt.bundle import Bundle
from fastv_trt.engines import BuildLimits, build
from fastv_trt.errors import UnavailableError
from fastv_trt.export import export
from fastv_trt.nvidia import Library
from fastv_trt.targets import Target


@pytest.fixture(scope="session")
def rtx() -> Library:
    try:
        return nvidia.library("tensorrt-rtx")
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def demo_half(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The demo's checkpoint in fp16. Read-only."""
    checkpoint = Path(__file__).parents[2] / "examples" / "tiny_llava" / "checkpoint"
    return export(checkpoint, tmp_path_factory.mktemp("demo") / "bundle", dtype="fp16").bundle


@pytest.fixture
def fresh(half: Bundle, tmp_path: Path) -> Bundle:
    """A copy to build into."""
    return copied(half, tmp_path / "bundle")


@pytest.fixture(scope="session")
def built(half: Bundle, rtx: Library, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Target]:
    """A bundle with engines for compute capability 8.6, batch to 4. Treat it as read-only."""
    bundle = copied(half, tmp_path_factory.mktemp("built") / "bundle")
    limits = BuildLimits.of(bundle.manifest.model, max_prompt=128, max_batch=4, capacity=192)
    return bundle, build(bundle, limits=limits, compute=["8.6"], name="small")


def copied(bundle: Bundle, folder: Path) -> Bundle:
    shutil.copytree(bundle.path, folder, ignore=shutil.ignore_patterns("engines"))
    return Bundle.open(folder)
