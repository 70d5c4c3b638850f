"""Optimized graphs are kept between loads: same numbers, never a stale or damaged one, and no failure of their own."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from fastv_trt import bench, hashes
from fastv_trt.bundle import Bundle
from fastv_trt.errors import BundleError, InputError
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Runtime, optimized


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of entries, for graphs of any size."""
    monkeypatch.setenv(hashes.FOLDER, str(tmp_path / "cache"))
    monkeypatch.setattr(optimized, "MIN_BYTES", 1)
    return tmp_path / "cache" / optimized.FOLDER


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


def test_a_file_that_did_not_change_is_not_read_again(
    bundle: Bundle, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashes, "SETTLED", -3600.0)  # these files are seconds old
    read: list[str] = []
    sha256 = hashes.sha256
    monkeypatch.setattr(hashes, "sha256", lambda path: read.append(path.name) or sha256(path))
    numbers(Bundle.open(bundle.path))
    numbers(Bundle.open(bundle.path))  # the entries are read once, when they are first used
    written = [*cache.glob("*/" + optimized.MODEL), *cache.glob("*/" + optimized.WEIGHTS)]
    assert len(read) == len(bundle.manifest.files) + len(written)
    numbers(Bundle.open(bundle.path))
    assert len(read) == len(bundle.manifest.files) + len(written)
    weights = bundle.path / "onnx" / "suffix.onnx.data"
    os.utime(weights)  # read again, and found to be the same
    numbers(Bundle.open(bundle.path))
    assert read[-1] == weights.name


def test_a_change_that_keeps_size_and_time_is_found(
    bundle: Bundle, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashes, "SETTLED", -3600.0)
    copy = tmp_path / "bundle"
    shutil.copytree(bundle.path, copy)
    Bundle.open(copy)
    weights = copy / "onnx" / "suffix.onnx.data"
    before = weights.stat()
    with weights.open("r+b") as file:
        file.write(b"other")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(BundleError, match="altered"):
        Bundle.open(copy)


def test_a_file_that_has_just_changed_is_not_remembered(bundle: Bundle, tmp_path: Path, cache: Path) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(bundle.path, copy)
    Bundle.open(copy)
    assert not any(json.loads(path.read_text()) for path in cache.parent.glob("hashes/*"))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', "null", "5"])
def test_a_damaged_memory_of_hashes_is_no_failure(
    bundle: Bundle, cache: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashes, "SETTLED", -3600.0)
    Bundle.open(bundle.path)
    kept = list(cache.parent.glob("hashes/*"))
    assert kept
    for path in kept:
        path.write_text(text.replace("a", str(bundle.path.resolve() / bundle.manifest.files[0].path)))
    assert Bundle.open(bundle.path).manifest == bundle.manifest


def test_small_graphs_and_a_cache_that_is_off_leave_nothing(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(hashes.FOLDER, str(tmp_path / "cache"))
    numbers(bundle)
    monkeypatch.setattr(optimized, "MIN_BYTES", 1)
    monkeypatch.setenv(hashes.FOLDER, "off")
    numbers(bundle)
    assert not (tmp_path / "cache").exists()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(hashes.FOLDER)
    assert hashes.folder() is None
    monkeypatch.setenv(hashes.FOLDER, "on")
    assert hashes.folder() == tmp_path / "home" / "fastv-trt"


def test_a_cache_that_cannot_be_written_is_no_failure(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(optimized, "MIN_BYTES", 1)
    monkeypatch.setenv(hashes.FOLDER, str(tmp_path / "file"))
    assert numbers(bundle).shape[0] == 4


def test_the_least_recently_used_go_first(bundle: Bundle, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(optimized.LIMIT, "0")
    assert numbers(bundle).shape[0] == 4
    assert len(entries(cache)) == 1  # the last one written stays
    monkeypatch.setenv(optimized.LIMIT, "much")
    with pytest.raises(InputError, match="number of GiB"):
        numbers(bundle)
