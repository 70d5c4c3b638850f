"""Failures that users of other exporters reported, each as a test. docs/families.md lists the rest by their place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastv_trt.bundle import Bundle
from fastv_trt.errors import InputError, UnsupportedModelError
from fastv_trt.families import families
from fastv_trt.limits import BuildLimits, profiles
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Limits, Request, Runtime
from tests.conftest import LAYERS, picture


def test_no_layer_is_cached_twice(bundle: Bundle) -> None:
    """FastV 46: keys and values of layer K-1 were kept in both halves."""
    cached = [
        {record.name for record in bundle.manifest.graphs[graph].inputs if record.name.endswith(".key")}
        for graph in ("prefix", "suffix")
    ]
    assert not cached[0] & cached[1]
    assert len(cached[0] | cached[1]) == LAYERS


def test_an_export_has_its_vision_part(bundle: Bundle) -> None:
    """genai 685: an export of a vision-language model wrote only the decoder."""
    assert bundle.manifest.graphs["vision"].outputs[0].name == "image_features"
    weights = bundle.path / "onnx" / "vision.onnx.data"
    assert weights.stat().st_size > 10_000


def test_every_graph_has_weights_of_its_own(bundle: Bundle) -> None:
    """Native-LLM-for-Android 43: two graphs in one folder overwrote each other's external data."""
    import onnx

    for name in ("vision", "prefix", "suffix"):
        graph = onnx.load(str(bundle.graph_path(name)), load_external_data=False).graph
        places = {e.value for t in graph.initializer for e in t.external_data if e.key == "location"}
        assert places == {f"{name}.onnx.data"}


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ids_of_either_width_give_the_same_answer(runtime: Runtime, dtype: Any) -> None:
    """genai 927."""
    request = runtime.request("what?", [picture(0)])
    given = Request(request.input_ids.astype(dtype), request.vision_inputs, request.image_sizes)
    wanted, found = (runtime.answers([r], Pruning(ratio=0.5), Limits(4, stop=()))[0].tokens for r in (request, given))
    assert wanted == found


def test_a_decode_step_is_given_no_picture(runtime: Runtime) -> None:
    """optimum 1790: image features were passed, and merged again, at every decode step."""
    from fastv_trt.runtime.generation import Generation
    from fastv_trt.runtime.sampling import Sampling

    request = runtime.request("what?", [picture(0)])
    done = Generation.start(runtime.chain, [request], Pruning(), Limits(3, stop=()), Sampling()).finish()
    assert done.caches.step is not None
    assert done.caches.step.prefix["image_features"].shape[0] == 0


def test_a_range_on_a_static_axis_is_seen_before_the_compiler(bundle: Bundle) -> None:
    """GR00T 380: a profile gave a range to an axis that was traced with a fixed size."""
    limits = BuildLimits.of(bundle.manifest.model)
    for name, graph in bundle.manifest.graphs.items():
        inputs = {
            record.name: tuple(limits.capacity_of(name) if axis == "C" else axis for axis in record.shape)
            for record in graph.inputs
        }
        for profile in profiles(name, limits, bundle.manifest.vision.axes):
            assert profile.problems(name, inputs) == []
            shapes = profile.shapes(inputs).shapes
            for tensor, axes in inputs.items():
                fixed = [i for i, axis in enumerate(axes) if isinstance(axis, int)]
                ranges = shapes[tensor]
                assert all(ranges.min[i] == ranges.max[i] == axes[i] for i in fixed)


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK", "I;16", "animated", "turned", "strip", "tower"])
def test_pictures_of_every_kind_become_tokens(runtime: Runtime, tmp_path: Path, mode: str) -> None:
    base = Image.fromarray(picture(1, 30, 50))
    path = tmp_path / {"CMYK": "a.tif", "I;16": "a.png", "animated": "a.gif", "turned": "a.jpg"}.get(mode, "a.png")
    if mode == "I;16":
        Image.fromarray(np.arange(1500, dtype=np.uint16).reshape(30, 50) * 40).save(path)
    elif mode == "animated":
        base.save(path, save_all=True, append_images=[base.transpose(Image.Transpose.ROTATE_180)])
    elif mode == "turned":
        exif = Image.Exif()
        exif[0x0112] = 6
        base.save(path, exif=exif)
    elif mode in ("strip", "tower"):
        base.resize((2000, 10) if mode == "strip" else (10, 2000)).save(path)
    else:
        base.convert(mode).save(path)
    answer = runtime.generate("what?", [path], limits=Limits(1))
    assert answer.image_tokens == 25


@pytest.mark.parametrize("side", [335, 336, 337, 338])
def test_sizes_around_the_tile_become_tokens(runtime: Runtime, side: int) -> None:
    for height, width in ((side, 336), (336, side)):
        assert runtime.request("what?", [picture(0, height, width)]).image_sizes == (25,)


def test_a_bundle_of_the_first_schema_opens(bundle: Bundle, checkpoints: Callable[..., Path], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle.path, tmp_path / "old"))
    manifest = json.loads((copy / "bundle.json").read_text())
    del manifest["vision"]
    manifest["schema_version"] = 1
    source = checkpoints() / "processor_config.json"
    shutil.copy(source, copy / "processor" / source.name)
    (copy / "processor" / "preprocessor_config.json").unlink(missing_ok=True)
    names = {file.relative_to(copy).as_posix() for file in copy.rglob("*") if file.is_file()}
    from fastv_trt.bundle import sha256

    manifest["files"] = [
        {"path": name, "bytes": (copy / name).stat().st_size, "sha256": sha256(copy / name)}
        for name in sorted(names - {"bundle.json"})
        if not name.startswith("engines/")
    ]
    (copy / "bundle.json").write_text(json.dumps(manifest))
    answers = [Runtime.load(path).generate("what?", [picture(0)], limits=Limits(4)) for path in (copy, bundle.path)]
    assert answers[0].tokens == answers[1].tokens
    assert Bundle.open(copy).manifest.vision.settings["tokens"] == 25


def test_videos_are_refused_by_a_family_without_them(runtime: Runtime, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected pictures for llava, found a video"):
        runtime.generate("what?", videos=[tmp_path])
    with pytest.raises(InputError, match="a list of videos, found str"):
        runtime.generate("what?", videos="a.mp4")


def test_a_family_of_another_package_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace
    from importlib import metadata
    from types import SimpleNamespace

    own = replace(families()[0], name="mine", architectures=("MineForConditionalGeneration",))
    given: dict[str, Any] = {"points": [SimpleNamespace(name="mine", value="mine:FAMILY", load=lambda: own)]}
    monkeypatch.setattr(
        metadata, "entry_points", lambda group: given["points"] if group == "fastv_trt.families" else []
    )
    families.cache_clear()
    try:
        assert families()[-1] is own
        for wrong, message in ((lambda: 3, "found int"), (lambda: replace(own, name="llava"), "again"), (dict, "dict")):
            families.cache_clear()
            given["points"] = [SimpleNamespace(name="x", value="x:FAMILY", load=wrong)]
            with pytest.raises(UnsupportedModelError, match=message):
                families()
    finally:
        monkeypatch.undo()
        families.cache_clear()
