"""A bundle that is not whole: the same one line as Python, no crash, and no leak (the program has the sanitizers)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastv_trt.bundle import Bundle
from fastv_trt.errors import FastVError
from fastv_trt.runtime import Runtime

Manifest = dict[str, Any]


@pytest.fixture
def copy(demo: Bundle, tmp_path: Path) -> Path:
    return Path(shutil.copytree(demo.path, tmp_path / "copy"))


def refused(program: Path, bundle: Path) -> str:
    """What C++ says of a bundle."""
    done = subprocess.run([program, bundle, "/dev/null"], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr[-3000:]
    assert done.stdout == ""
    return done.stderr.removesuffix("\n")


def same(checked: Path, bundle: Path) -> str:
    """Both refuse, in the same words; returns them."""
    with pytest.raises(FastVError) as error:
        Runtime.load(bundle)
    found = refused(checked / "tests" / "fastv_cases", bundle)
    assert found == str(error.value)
    assert "\n" not in found
    return found


def remove(bundle: Path) -> None:
    (bundle / "onnx" / "suffix.onnx").unlink()


def alter(bundle: Path) -> None:
    path = bundle / "onnx" / "prefix.onnx.data"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def shorten(bundle: Path) -> None:
    os.truncate(bundle / "onnx" / "vision.onnx", 10)


def add(bundle: Path) -> None:
    (bundle / "onnx" / "zz").mkdir()
    (bundle / "onnx" / "zz" / "b.so").write_bytes(b"x")
    (bundle / "processor" / "a.so").write_bytes(b"x")


def link_out(bundle: Path) -> None:
    data = bundle / "onnx" / "suffix.onnx.data"
    shutil.move(data, bundle.parent / "elsewhere")
    data.symlink_to(bundle.parent / "elsewhere")


def no_manifest(bundle: Path) -> None:
    (bundle / "bundle.json").unlink()


@pytest.mark.parametrize("damage", [remove, alter, shorten, add, link_out, no_manifest])
def test_damaged_files(damage: Callable[[Path], None], copy: Path, checked: Path) -> None:
    damage(copy)
    same(checked, copy)


def test_no_bundle_at_all(checked: Path, tmp_path: Path) -> None:
    same(checked, tmp_path / "absent")


CHANGES: dict[str, Callable[[Manifest], object]] = {
    "newer schema": lambda m: m.update(schema_version=99),
    "no schema": lambda m: m.pop("schema_version"),
    "schema of another type": lambda m: m.update(schema_version="1"),
    "an unknown field": lambda m: m.update(surprise=1),
    "an unknown field within": lambda m: m["model"].update(position_axes=3),
    "a missing field": lambda m: m["model"].pop("heads"),
    "a list for an object": lambda m: m.update(model=[1]),
    "an object for a list": lambda m: m.update(files={}),
    "a fraction": lambda m: m.update(k=1.5),
    "a word for a number": lambda m: m["model"].update(layers="many"),
    "a number for a word": lambda m: m.update(created_by=3),
    "an unknown dtype": lambda m: m.update(dtype="fp64"),
    "positions of another kind": lambda m: m["vision"].update(positions="2d"),
    "no vision record": lambda m: m.pop("vision"),
    "an unknown field of vision": lambda m: m["vision"].update(tiles=1),
    "a negative size": lambda m: m["files"][0].update(bytes=-1),
    "a digest of another form": lambda m: m["files"][1].update(sha256="ABC"),
    "a path that leaves": lambda m: m["files"][0].update(path="onnx/../../x"),
    "an absolute path": lambda m: m["files"][0].update(path="/etc/passwd"),
    "an empty path": lambda m: m["files"][0].update(path=""),
    "a dimension of another type": lambda m: m["graphs"]["prefix"]["inputs"][0].update(shape=[None]),
    "a graph that is not listed": lambda m: m["graphs"]["prefix"].update(path="onnx/other.onnx"),
    "token ids that are not": lambda m: m["tokens"].update(eos=[2, "x"]),
    "a verification of another form": lambda m: m.update(verification={"tool": "x"}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_wrong_manifests(name: str, copy: Path, checked: Path) -> None:
    content = json.loads((copy / "bundle.json").read_text())
    CHANGES[name](content)
    (copy / "bundle.json").write_text(json.dumps(content))
    same(checked, copy)


def test_what_is_not_json(copy: Path, checked: Path) -> None:
    """The reason is in the words of each JSON library; the rest is the same."""
    (copy / "bundle.json").write_text("{")
    found = refused(checked / "tests" / "fastv_cases", copy)
    with pytest.raises(FastVError) as error:
        Runtime.load(copy)
    assert found.split(", found: ")[0] == str(error.value).split(", found: ")[0]


def test_a_graph_that_onnx_runtime_refuses(copy: Path, checked: Path) -> None:
    """Hashes agree, but the file is no graph."""
    from fastv_trt.bundle import sha256

    path = copy / "onnx" / "vision.onnx"
    path.write_bytes(b"no graph at all")
    content = json.loads((copy / "bundle.json").read_text())
    record = next(file for file in content["files"] if file["path"] == "onnx/vision.onnx")
    record |= {"bytes": path.stat().st_size, "sha256": sha256(path)}
    (copy / "bundle.json").write_text(json.dumps(content))
    with pytest.raises(FastVError) as error:
        Runtime.load(copy)
    done = subprocess.run(
        [checked / "tests" / "fastv_cases", copy, "/dev/null"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (1, str(error.value))


@pytest.mark.parametrize("graph", ["prefix", "suffix"])
def test_a_contract_that_is_newer_is_refused(graph: str, copy: Path, checked: Path) -> None:
    """Inputs and shapes that this library does not know: it says so, and runs nothing."""
    content = json.loads((copy / "bundle.json").read_text())
    inputs = content["graphs"][graph]["inputs"]
    inputs.append({"name": "surprise", "dtype": "float32", "shape": ["M", 128], "meaning": "?"})
    (copy / "bundle.json").write_text(json.dumps(content))
    assert "found surprise; upgrade this library" in refused(checked / "tests" / "fastv_cases", copy)
    inputs.pop()
    next(one for one in inputs if one["name"] == "position_ids")["shape"] = [2, "B", "S"]
    (copy / "bundle.json").write_text(json.dumps(content))
    assert "found [2, 'B', 'S']; upgrade this library" in refused(checked / "tests" / "fastv_cases", copy)
