"""A bundle is whole, unaltered and its own, or it is refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fastv_trt.bundle import Bundle, writing
from fastv_trt.errors import BundleError, InputError
from fastv_trt.runtime import Runtime


@pytest.fixture
def copy(bundle: Bundle, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle.path, tmp_path / "copy"))


def edit(folder: Path, change: Callable[[dict[str, object]], object]) -> None:
    content = json.loads((folder / "bundle.json").read_text())
    change(content)
    (folder / "bundle.json").write_text(json.dumps(content))


def test_a_whole_bundle_opens(copy: Path) -> None:
    assert Bundle.open(copy).manifest.k == 2


def test_a_missing_file(copy: Path) -> None:
    (copy / "onnx" / "suffix.onnx").unlink()
    with pytest.raises(BundleError, match=r"expected onnx/suffix.onnx .* found nothing"):
        Bundle.open(copy)


@pytest.mark.parametrize("name", ["onnx/suffix.onnx.data", "onnx/prefix.onnx", "processor/tokenizer.json"])
def test_an_altered_byte(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(BundleError, match=f"expected {name} .* as it was exported, found it altered"):
        Runtime.load(copy)


def test_a_shortened_file_is_seen_without_hashing(copy: Path) -> None:
    data = copy / "onnx" / "suffix.onnx.data"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(BundleError, match="altered"):
        Bundle.open(copy, check_hashes=False)


def test_a_foreign_file(copy: Path) -> None:
    (copy / "onnx" / "extra.so").write_bytes(b"x")
    with pytest.raises(BundleError, match=r"found onnx/extra.so; remove it"):
        Bundle.open(copy)


def test_engines_are_not_foreign(copy: Path) -> None:
    (copy / "engines" / "rtx").mkdir(parents=True)
    (copy / "engines" / "rtx" / "engine.json").write_text("{}")
    Bundle.open(copy)


def test_a_link_that_leaves_the_bundle(copy: Path, tmp_path: Path) -> None:
    data = copy / "onnx" / "suffix.onnx.data"
    shutil.move(data, tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match="link that leaves it"):
        Bundle.open(copy)


@pytest.mark.parametrize("path", ["../evil", "/etc/passwd", "onnx/../../evil", "C:\\evil", ""])
def test_a_path_that_leaves_the_bundle(copy: Path, path: str) -> None:
    edit(copy, lambda c: c["files"][0].update(path=path))  # type: ignore[index, attr-defined]
    with pytest.raises(BundleError, match="leaves the bundle"):
        Bundle.open(copy)


def test_a_graph_that_is_not_among_the_files(copy: Path) -> None:
    edit(copy, lambda c: c["graphs"]["prefix"].update(path="onnx/other.onnx"))  # type: ignore[index, attr-defined, call-overload]
    with pytest.raises(BundleError, match="unlisted"):
        Bundle.open(copy)


def test_a_newer_schema(copy: Path) -> None:
    edit(copy, lambda c: c.update(schema_version=99))
    with pytest.raises(BundleError, match="found 99; upgrade fastv-trt"):
        Bundle.open(copy)


@pytest.mark.parametrize(
    "text",
    ["", "not json", "[]", "{}", '{"schema_version": 1}', '{"schema_version": "1"}', '{"schema_version": 1, "k": 2}'],
)
def test_a_manifest_that_is_none(copy: Path, text: str) -> None:
    (copy / "bundle.json").write_text(text)
    with pytest.raises(BundleError) as caught:
        Bundle.open(copy)
    assert "\n" not in str(caught.value)


def test_no_bundle_at_all(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(BundleError, match="expected a bundle"):
            Bundle.open(path)


def test_writing_renames_when_it_is_done(tmp_path: Path) -> None:
    with writing(tmp_path / "b") as folder:
        (folder / "file").write_text("x")
        assert not (tmp_path / "b").exists()
    assert (tmp_path / "b" / "file").read_text() == "x"
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk full"), writing(tmp_path / "b") as folder:
        (folder / "file").write_text("x")
        raise OSError("disk full")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="not to exist"), writing(tmp_path / "b"):
        pytest.fail("the body must not run")


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="can be written"), writing(tmp_path / "file" / "b"):
        pytest.fail("the body must not run")
