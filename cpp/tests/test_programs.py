"""The example programs, and a project of its own that finds the installed library."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fastv_trt import Pruning, Runtime
from fastv_trt.bundle import Bundle
from fastv_trt.runtime import Request

SAMPLES = Path(__file__).parents[2] / "examples" / "tiny_llava" / "samples"


@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.75])
def test_answer_says_what_python_says(ratio: float, checked: Path, demo: Bundle) -> None:
    """From a picture file and a question, tokenized and preprocessed in C++."""
    runtime = Runtime.load(demo)
    for line in (SAMPLES / "samples.jsonl").read_text().splitlines()[:4]:
        sample = json.loads(line)
        picture = SAMPLES / sample["image"]
        arguments = ["--image", picture, "--prompt", sample["prompt"], "--ratio", str(ratio)]
        done = subprocess.run(
            [checked / "examples" / "fastv-answer", demo.path, *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        answer = runtime.generate(sample["prompt"], [picture], pruning=Pruning(ratio=ratio))
        assert done.stdout.strip() == answer.text
        assert f"kept {answer.kept_tokens} of {answer.image_tokens} image tokens" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ([], "expected --image and --prompt, or --inputs"),
        (["--image", SAMPLES / "samples.jsonl", "--prompt", "What?"], "expected a picture at"),
        (["--image", SAMPLES / "digits-01.png", "--prompt", "é?"], "expected a question in ASCII"),
        (["--inputs", SAMPLES / "digits-01.png"], "found a file of another kind"),
        (["--ratio", "much"], "expected"),
        (["--surprise", "1"], "expected options with values, found --surprise"),
    ],
)
def test_answer_refuses_in_one_line(arguments: list[str], found: str, checked: Path, demo: Bundle) -> None:
    command = [checked / "examples" / "fastv-answer", demo.path, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert found in done.stderr
    assert done.stderr.count("\n") == 1


def test_bench_splits_the_time_to_first_token(
    checked: Path, demo: Bundle, requests: dict[str, tuple[Request, Path]]
) -> None:
    arguments = ["--inputs", requests["two"][1], "--ratios", "0,0.75", "--rounds", "1", "--new-tokens", "3"]
    done = subprocess.run(
        [checked / "examples" / "fastv-bench", demo.path, *arguments], capture_output=True, text=True, check=True
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["kept_tokens"] for line in lines] == [288, 72]
    assert lines[1]["kv_bytes"] < lines[0]["kv_bytes"]
    assert all(line["ttft_ms"] >= line["suffix_ms"] > 0 and line["decode_step_ms"] > 0 for line in lines)


def test_a_project_finds_the_installed_library(installed: Path, demo: Bundle, tmp_path: Path) -> None:
    source = Path(__file__).parent / "consumer"
    prefixes = f"-DCMAKE_PREFIX_PATH={installed};{installed.parent / 'deps' / 'onnxruntime'}"
    subprocess.run(["cmake", "-S", source, "-B", tmp_path, prefixes], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", tmp_path], check=True, capture_output=True)
    done = subprocess.run([tmp_path / "consumer", demo.path], capture_output=True, text=True, check=True)
    assert done.stdout.endswith(" tokens\n")
