"""Every family: exported from a random checkpoint of its real class, and held to that class's own numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastv_trt.bundle import Bundle
from fastv_trt.families import Clip, by_name
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Limits, Runtime
from fastv_trt.verify import verify
from tests.conftest import picture
from tests.families.models import MODELS

pytestmark = pytest.mark.families
Bundles = Callable[..., Bundle]
Checkpoints = Callable[[str], Path]
Record = Callable[[str, str, Any], None]
RATIOS = (0.0, 0.5, 0.9)
FOREVER = Limits(6, stop=())


def clip(frames: int = 4, height: int = 40, width: int = 64) -> Clip:
    return Clip([picture(i, height, width) for i in range(frames)], [0.5 * i for i in range(frames)])


def family_name(model: str) -> str:
    return {"smolvlm": "idefics3"}.get(model, model)


READS_VIDEO = [name for name in MODELS if by_name(family_name(name)).video]
MROPE = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_pruned_and_unpruned_runs_equal_the_checkpoint(
    family_bundle: Bundles, family_checkpoint: Checkpoints, record: Record, name: str, k: int
) -> None:
    bundle = family_bundle(name, k)
    report = verify(bundle, family_checkpoint(name), ratios=RATIOS, rankings=("last-query", "received"))
    images = {case.images for case in report.cases}
    assert images == ({1} if by_name(family_name(name)).front else {1, 2})
    assert {case.ratio for case in report.cases} == set(RATIOS)
    assert max(case.logit for case in report.cases) <= 1e-4
    assert max(b.vision for b in report.boundaries) <= 2e-4  # features are tens here, so that pictures matter
    assert all(case.same_kept for case in report.cases)
    assert all(case.same_tokens == 32 for case in report.cases if case.ratio == 0.0)
    assert report.passed
    record(name, "architecture", bundle.manifest.model.architecture)
    record(name, "images", True)
    record(name, "several_images", 2 in images)
    record(name, f"k{k}", True)
    record(name, "largest_logit_difference", max(case.logit for case in report.cases))


@pytest.mark.parametrize("name", MODELS)
def test_pictures_of_different_sizes_share_a_prompt(
    family_bundle: Bundles, family_checkpoint: Checkpoints, name: str
) -> None:
    """One wide, one tall, one tiny; each gets its own number of tokens."""
    if by_name(family_name(name)).front:
        pytest.skip("reads one picture")
    pictures = [picture(1, 20, 160), picture(2, 170, 30), picture(3, 9, 11)]
    bundle = family_bundle(name)
    report = verify(bundle, family_checkpoint(name), ratios=(0.5,), rankings=("last-query",), images=pictures)
    assert report.cases[0].logit <= 1e-4 and report.passed
    runtime = Runtime.load(bundle)
    request = runtime.request("what?", pictures)
    answer = runtime.answers([request], Pruning(ratio=0.5, scope="image"), Limits(1))[0]
    kept = np.isin(answer.prefill.image_positions, answer.keep_indices)
    ends = np.cumsum(request.image_sizes)[:-1]
    assert [int(part.sum()) for part in np.split(kept, ends)] == [round(0.5 * size) for size in request.image_sizes]


@pytest.mark.parametrize("name", READS_VIDEO)
def test_videos_equal_the_checkpoint(
    family_bundle: Bundles, family_checkpoint: Checkpoints, record: Record, name: str
) -> None:
    report = verify(
        family_bundle(name), family_checkpoint(name), ratios=RATIOS, rankings=("last-query",), videos=[clip()]
    )
    assert max(case.logit for case in report.cases) <= 1e-4
    assert report.passed
    record(name, "video", True)


@pytest.mark.parametrize("name", READS_VIDEO)
def test_every_frame_can_have_its_share(family_bundle: Bundles, name: str) -> None:
    runtime = Runtime.load(family_bundle(name))
    request = runtime.request("what?", [picture(5)], videos=[clip()])
    assert len(request.image_sizes) == 2 < len(request.frame_sizes)
    answer = runtime.answers([request], Pruning(ratio=0.5, scope="frame"), FOREVER)[0]
    kept = np.isin(answer.prefill.image_positions, answer.keep_indices)
    parts = np.split(kept, np.cumsum(request.frame_sizes)[:-1])
    assert [int(part.sum()) for part in parts] == [round(0.5 * size) for size in request.frame_sizes]


@pytest.mark.parametrize("name", MROPE)
def test_kept_tokens_keep_their_three_rows_and_decode_goes_on_behind_them(family_bundle: Bundles, name: str) -> None:
    """Positions as the graphs get them, recorded at the sessions."""
    runtime = Runtime.load(family_bundle(name))
    request = runtime.request("what is it?", [picture(1, 64, 100)])
    assert request.position_ids is not None
    seen: list[np.ndarray] = []
    session = runtime.chain._sessions["suffix"]
    run = session.run

    def watched(tensors: dict[str, Any]) -> dict[str, Any]:
        seen.append(runtime.chain.device.download(tensors["position_ids"]))
        return run(tensors)

    session.run = watched  # type: ignore[method-assign]
    answer = runtime.answers([request], Pruning(ratio=0.5), FOREVER)[0]
    assert np.array_equal(seen[0][:, 0], request.position_ids[:, answer.keep_indices])
    first = int(request.position_ids.max()) + 1
    assert first < len(request.input_ids)  # a picture takes fewer positions than tokens
    assert [s[:, 0, 0].tolist() for s in seen[1:]] == [[first + i] * 3 for i in range(5)]


@pytest.mark.parametrize("name", MROPE)
def test_batches_and_turns_count_positions_per_row(family_bundle: Bundles, name: str) -> None:
    runtime = Runtime.load(family_bundle(name))
    requests = [runtime.request("a", [picture(1, 64, 100)]), runtime.request("a longer one?", [picture(2), picture(3)])]
    together = runtime.answers(requests, Pruning(ratio=0.5), FOREVER)
    alone = [runtime.answers([request], Pruning(ratio=0.5), FOREVER)[0] for request in requests]
    assert [a.tokens for a in together] == [a.tokens for a in alone]
    talk = runtime.conversation(Pruning(ratio=0))
    first = talk.ask("what?", [picture(1, 64, 100)], limits=FOREVER)
    second = talk.ask("and this?", [picture(4)], limits=FOREVER)
    whole = np.concatenate((first.prefill.logits, second.prefill.logits))
    assert np.isfinite(whole).all()


@pytest.mark.parametrize("name", MODELS)
def test_run_needs_no_torch(family_bundle: Bundles, tmp_path: Path, name: str) -> None:
    from PIL import Image

    Image.fromarray(picture(1)).save(tmp_path / "a.png")
    arguments = ["run", str(family_bundle(name).path), "-p", "what?", "-i", str(tmp_path / "a.png"), "--json"]
    if name in READS_VIDEO:
        arguments += ["--video", str(tmp_path)]
    code = (
        "import sys; sys.modules['torch'] = sys.modules['torchvision'] = None; "
        "from fastv_trt.cli import main; sys.argv[0] = 'fastv-trt'; main()"
    )
    command = [sys.executable, "-c", code, *arguments, "--max-new-tokens", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kept_tokens"] > 0


@pytest.mark.parametrize("name", MODELS)
def test_engines_can_be_built_in_fp16(family_bundle: Bundles, record: Record, name: str) -> None:
    pytest.importorskip("tensorrt_rtx")
    from fastv_trt.engines import BuildLimits, build, examine

    bundle = family_bundle(name, dtype="fp16")
    limits = BuildLimits.of(bundle.manifest.model, max_prompt=512, max_images=2)
    assert examine(bundle, limits, ("8.6",)).lines == []
    target = build(bundle, limits=limits, compute=("8.6",))
    assert set(target.manifest.engines) == set(bundle.manifest.graphs)
    record(name, "rtx_engine", True)


@pytest.mark.parametrize("k", [0, 1, 2])
def test_deepstack_is_not_dropped_behind_the_cut(
    family_bundle: Bundles, family_checkpoint: Checkpoints, k: int
) -> None:
    """The symptom of genai's issue 1989. Three layers of DeepStack, cut before, between and behind them."""
    bundle = family_bundle("qwen3_vl", k)
    inputs = {record.name for record in bundle.manifest.graphs["suffix"].inputs}
    assert {"deepstack_features", "deepstack_rows"} <= inputs
    assert verify(bundle, family_checkpoint("qwen3_vl"), ratios=(0.0, 0.5)).passed
