"""The command line: results on stdout, one line per error on stderr, exit codes 0, 1 and 2."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from fastv_trt.bundle import Bundle
from tests.conftest import Run, picture


@pytest.fixture
def image(tmp_path: Path) -> Path:
    Image.fromarray(picture(0)).save(tmp_path / "a.png")
    return tmp_path / "a.png"


def test_export_verify_inspect_run(cli: Run, checkpoints: Callable[..., Path], image: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    code, out, _ = cli("export", checkpoints(), bundle, "--k", 1, "--rankings", "received")
    assert code == 0 and "cut before layer 1" in out
    code, out, _ = cli("inspect", bundle)
    assert code == 0 and "not yet; run fastv-trt verify" in out
    code, out, _ = cli("verify", bundle, "--against", checkpoints(), "--ratios", "0,0.5", "--image", image)
    assert code == 0 and out.rstrip().endswith("passed")
    record = Bundle.open(bundle).manifest.verification
    assert record is not None and record.passed and record.max_abs_logit_difference <= 1e-4
    code, out, _ = cli("inspect", bundle, "--json", "--prompt", "what?", "--image", image, "--ratio", "0.75")
    counted = json.loads(out)["prompt"]
    assert code == 0 and (counted["image_tokens"], counted["kept_image_tokens"]) == (25, 6)
    code, out, _ = cli("run", bundle, "-p", "what?", "-i", image, "--ratio", "0.75", "--json", "--max-new-tokens", 4)
    answer = json.loads(out)
    assert code == 0 and (answer["image_tokens"], answer["kept_tokens"]) == (25, 6)
    assert answer["prompt_tokens"] == counted["prompt_tokens"]
    assert len(answer["scores"]) == 25
    code, _, err = cli("run", bundle, "-p", "what?", "-i", image, "--ranking", "last-query")
    assert code == 2 and "export with --rankings" in err


def test_run_streams_text_and_says_what_it_cost(cli: Run, bundle: Bundle, image: Path) -> None:
    code, out, err = cli("run", bundle.path, "-p", "what?", "-i", image, "--max-new-tokens", 3)
    assert code == 0 and out.endswith("\n")
    assert "kept 12 of 25 image tokens" in err and "rank+select" in err


def test_run_reads_the_prompt_from_stdin(
    cli: Run, bundle: Bundle, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("what?\n"))
    code, out, _ = cli("run", bundle.path, "-p", "-", "-i", image, "--max-new-tokens", 2, "--json")
    assert code == 0 and json.loads(out)["image_tokens"] == 25


def test_run_draws_what_was_kept(cli: Run, bundle: Bundle, image: Path, tmp_path: Path) -> None:
    target = tmp_path / "kept.png"
    code, _, _ = cli(
        "run", bundle.path, "-p", "what?", "-i", image, "-i", image, "--save-kept", target, "--max-new-tokens", 1
    )
    assert code == 0
    with Image.open(target) as drawn:
        assert drawn.width > 300 and drawn.height > 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-r", "1.5"], "ratio in [0, 1], found 1.5"),
        (["-r", "nan"], "ratio in [0, 1], found nan"),
        (["-r", "0.5", "--keep", "3"], "found both"),
        (["--keep", "-1"], "keep count of 0 or more"),
        (["--ranking", "best"], "found 'best'"),
        (["--scope", "page"], "found 'page'"),
        (["--device", "tpu"], "found 'tpu'"),
        (["--threads", "0"], "1 or more threads"),
        (["--max-new-tokens", "0"], "1 or more new tokens"),
        (["--max-new-tokens", "999"], "within the context of 256"),
        (["--temperature", "-1"], "temperature"),
        (["--top-p", "2"], "top_p"),
        (["-i", "missing.png"], "a picture at missing.png, found no file"),
        (["--save-kept", "no/such/folder/a.png"], "found none; make it first"),
        (["--raw"], "found 1 for 0"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    cli: Run, bundle: Bundle, image: Path, arguments: list[str], message: str
) -> None:
    code, out, err = cli("run", bundle.path, "-p", "what?", "-i", image, *arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("fastv-trt: expected") and err.count("\n") == 1


def test_text_only_prompts_say_so_or_fail_if_pruning_is_required(cli: Run, bundle: Bundle) -> None:
    code, _, err = cli("run", bundle.path, "-p", "hello", "--max-new-tokens", 2)
    assert code == 0 and "nothing was pruned" in err
    code, _, err = cli("run", bundle.path, "-p", "hello", "--require-pruning")
    assert code == 2 and "pruning is required" in err


def test_a_picture_that_is_none(cli: Run, bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no picture")
    code, _, err = cli("run", bundle.path, "-p", "what?", "-i", tmp_path / "a.png")
    assert code == 2 and "file of another kind" in err


def test_a_bundle_that_is_none(cli: Run, tmp_path: Path) -> None:
    for command in (["run", tmp_path, "-p", "x"], ["inspect", tmp_path], ["verify", tmp_path, "--against", tmp_path]):
        code, _, err = cli(*command)
        assert code == 2 and "expected a bundle" in err


def test_verify_exits_1_beyond_tolerance(
    cli: Run, bundle: Bundle, checkpoints: Callable[..., Path], tmp_path: Path
) -> None:
    other = checkpoints("llama", initializer_range=0.2)
    copy = shutil.copytree(bundle.path, tmp_path / "copy")
    code, _, err = cli("verify", copy, "--against", other, "--ratios", "0.5", "--rankings", "random")
    assert code == 1 and "do not deploy" in err
    record = Bundle.open(copy).manifest.verification
    assert record is not None and not record.passed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ratios", "a,b"], "numbers separated by commas"),
        (["--ratios", "2"], "found 2.0"),
        (["--rankings", "best"], "best"),
    ],
)
def test_verify_refuses_bad_grids(
    cli: Run, bundle: Bundle, checkpoints: Callable[..., Path], arguments: list[str], message: str
) -> None:
    code, _, err = cli("verify", bundle.path, "--against", checkpoints(), *arguments)
    assert code == 2 and message in err


def test_verify_refuses_a_checkpoint_of_another_depth(
    cli: Run, bundle: Bundle, checkpoints: Callable[..., Path]
) -> None:
    other = checkpoints("llama", num_hidden_layers=3)
    code, _, err = cli("verify", bundle.path, "--against", other)
    assert code == 2 and "found 3 layers" in err


def test_export_says_when_it_casts(cli: Run, checkpoints: Callable[..., Path], tmp_path: Path) -> None:
    code, _, err = cli("export", checkpoints(), tmp_path / "b", "--dtype", "fp16", "--rankings", "last-query")
    assert code == 0 and "stored as fp32 and were cast to fp16" in err


def test_bf16_exports_and_is_refused_on_the_cpu(cli: Run, bundles: Callable[..., Bundle]) -> None:
    code, _, err = cli("run", bundles(dtype="bf16").path, "-p", "hello")
    assert code == 2 and "found bf16" in err


def test_cuda_without_its_provider_is_unavailable(cli: Run, bundle: Bundle) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    code, _, err = cli("run", bundle.path, "-p", "hello", "--device", "cuda")
    assert code == 3 and "onnxruntime-gpu" in err


def test_version_and_help(cli: Run) -> None:
    assert cli("--version")[1].startswith("fastv-trt ")
    for command in ("export", "run", "verify", "inspect", "demo"):
        code, out, _ = cli(command, "--help")
        assert code == 0 and "Usage" in out


def test_families_says_what_is_special_about_each(cli: Run) -> None:
    code, out, _ = cli("families", "--json")
    listed = json.loads(out)
    assert code == 0
    assert {"llava", "llava_next", "qwen3_vl", "internvl", "video_llava"} <= {row["name"] for row in listed["families"]}
    assert all(row["special"] and row["architectures"] for row in listed["families"])
    assert "bidirectionally" in listed["refused"]["Gemma3ForConditionalGeneration"]
    assert "Qwen3VLForConditionalGeneration" in cli("families")[1]
