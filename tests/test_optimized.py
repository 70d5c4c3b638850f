"""Optimized graphs are kept between loads: same numbers, never a stale or damaged one, and no failure of their own."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fastv_trt import bench
from fastv_trt.bundle import Bundle
from fastv_trt.errors import InputError
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Runtime, optimized


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of entries, for graphs of any size."""
    monkeypatch.setenv(optimized.FOLDER, str(tmp_path / "cache"))
    monkeypatch.setattr(optimized, "MIN_BYTES", 1)
    return tmp_path / "cache"


def numbers(bundle: Bundle) -> np.ndarray:
    """Logits of a pruned prefill and three decode steps, from a fresh load."""
    chain, pruning = Runtime.load(bundle, threads=1).chain, Pruning(ratio=0.5)
    request = bench.image_request(bundle, 8, 25)
    caches = chain.caches([request], [pruning], 4)
    logits = [chain.prefill(caches, 0, request, pruning).logits]
    for _ in range(3):
        logits.append(chain.decode(caches, [int(logits[-1].argmax())])[0])
    return np.stack(logits)


def entries(cache: Path) -> dict[str, float]:
    return {path.name: (path / optimized.MODEL).stat().st_mtime_ns for path in cache.iterdir()}


def test_a_second_load_takes_what_the_first_one_wrote(bundle: Bundle, cache: Path) -> None:
    first = numbers(bundle)
    made = entries(cache)
    assert len(made) == len(bundle.manifest.graphs)
    assert np.abs(numbers(bundle) - first).max() <= 1e-5
    assert entries(cache) == made
    assert not [path for path in cache.iterdir() if path.name.startswith(".")]


def test_a_damaged_entry_is_made_again(bundle: Bundle, cache: Path) -> None:
    first = numbers(bundle)
    for path in cache.glob("*/" + optimized.WEIGHTS):
        path.write_bytes(bytes(path.stat().st_size))  # same size, other content
    for path in list(cache.glob("*/" + optimized.RECORD))[:2]:
        path.write_text("{}")
    assert np.array_equal(numbers(bundle), first)
    assert len(entries(cache)) == len(bundle.manifest.graphs)


def test_other_bytes_are_another_entry(bundle: Bundle, cache: Path) -> None:
    """An entry is named after the hashes of the graph and its weights, which the bundle was checked against."""
    files = tuple(
        f.model_copy(update={"sha256": "0" * 64}) if f.path == "onnx/suffix.onnx.data" else f
        for f in bundle.manifest.files
    )
    other = Bundle(bundle.path, bundle.manifest.model_copy(update={"files": files}))
    assert optimized.Entry.of(other, "suffix") != optimized.Entry.of(bundle, "suffix")
    assert optimized.Entry.of(other, "prefix") == optimized.Entry.of(bundle, "prefix")


def test_a_file_that_did_not_change_is_not_read_again(bundle: Bundle, cache: Path) -> None:
    numbers(bundle)
    entry = optimized.Entry.of(bundle, "suffix")
    assert entry is not None and entry.usable()
    record = (entry.path / optimized.RECORD).read_text()
    weights = entry.path / optimized.WEIGHTS
    os.utime(weights)  # read again, and found to be the same
    assert entry.usable() and (entry.path / optimized.RECORD).read_text() != record


def test_small_graphs_and_a_cache_that_is_off_leave_nothing(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(optimized.FOLDER, str(tmp_path / "cache"))
    numbers(bundle)
    monkeypatch.setattr(optimized, "MIN_BYTES", 1)
    monkeypatch.setenv(optimized.FOLDER, "off")
    numbers(bundle)
    assert not (tmp_path / "cache").exists()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(optimized.FOLDER)
    assert optimized.folder() is None
    monkeypatch.setenv(optimized.FOLDER, "on")
    assert optimized.folder() == tmp_path / "home" / "fastv-trt" / "onnxruntime"


def test_a_cache_that_cannot_be_written_is_no_failure(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(optimized, "MIN_BYTES", 1)
    monkeypatch.setenv(optimized.FOLDER, str(tmp_path / "file"))
    assert numbers(bundle).shape[0] == 4


def test_the_least_recently_used_go_first(bundle: Bundle, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(optimized.LIMIT, "0")
    assert numbers(bundle).shape[0] == 4
    assert len(entries(cache)) == 1  # the last one written stays
    monkeypatch.setenv(optimized.LIMIT, "much")
    with pytest.raises(InputError, match="number of GiB"):
        numbers(bundle)
