"""`fastv-trt bench` measures what it says, and refuses what cannot be measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastv_trt import bench, cost
from fastv_trt.bundle import Bundle
from fastv_trt.runtime import Runtime
from tests.conftest import Run


def test_a_run_is_measured_by_part_and_against_r_0(cli: Run, bundle: Bundle, tmp_path: Path) -> None:
    arguments = ["--ratios", "0.5,1", "--runs", 3, "--warmup", 1, "--new-tokens", 4, "--batch", "1,2", "--threads", 1]
    figures, picture = tmp_path / "f.json", tmp_path / "f.png"
    code, out, err = cli("bench", bundle.path, *arguments, "--json", figures, "--plot", picture)
    assert code == 0 and "rank+select" in out and "of its cores" in err
    assert picture.read_bytes().startswith(b"\x89PNG")
    content = json.loads(figures.read_text())
    rows = content["rows"]
    assert [(row["batch"], row["ratio"], row["kept_tokens"]) for row in rows] == [
        (batch, ratio, kept) for batch in (1, 2) for ratio, kept in ((0, 25), (0.5, 12), (1, 0))
    ]
    model, prompt = bundle.manifest.model, content["prompt_tokens"]
    assert content["image_tokens"] == 25 and prompt == 64 + 25
    for row in rows:
        parts = [sum(parts.values()) for parts in row["rounds"]]
        assert len(parts) == 3 and set(row["parts_ms"]) == {"preprocess", "vision", "prefix", "rank+select", "suffix"}
        assert row["ttft_ms"]["min"] == pytest.approx(1e3 * min(parts))
        assert row["ttft_ms"]["min"] <= row["ttft_ms"]["median"] <= row["ttft_ms"]["p95"] <= row["ttft_ms"]["p99"]
        assert row["tokens_per_second"] == pytest.approx(1e3 * row["batch"] / row["tpot_ms"]["median"])
        remaining = prompt - 25 + row["kept_tokens"]
        held = cost.kv_bytes(model, "fp32", 2, prompt + 4, remaining + 4)
        assert row["kv_bytes"] == row["batch"] * held
    assert rows[0]["decoder_ratio"] == rows[0]["ideal_ratio"] == 1
    assert content["machine"]["threads"] == 1 and content["machine"]["versions"]["onnxruntime"]
    assert content["peak_memory_bytes"] > content["weight_bytes"]


def test_image_tokens_without_a_picture_leave_vision_out(runtime: Runtime) -> None:
    request = bench.image_request(runtime.bundle, 10, 90)
    prompt = bench.Prompt(lambda: request, len(request.input_ids), 90)
    points, _ = bench.measure(runtime, prompt, (0.5,), runs=1, warmup=0, new_tokens=1)
    assert [point.kept for point in points] == [90, 45] and prompt.tokens == 100
    assert points[1].steps == []


def test_json_to_stdout_is_the_whole_of_it(cli: Run, bundle: Bundle) -> None:
    code, out, _ = cli(
        "bench", bundle.path, "--ratios", "0", "--runs", 1, "--warmup", 0, "--new-tokens", 2, "--json", "-"
    )
    assert code == 0 and len(json.loads(out)["rows"]) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--ratios", "a,b"], 2, "numbers separated by commas"),
        (["--ratios", "0,1.5"], 2, "ratio in [0, 1], found 1.5"),
        (["--runs", "0"], 2, "expected 1 or more runs, found 0"),
        (["--warmup", "-1"], 2, "0 or more warm-up runs"),
        (["--batch", "0"], 2, "whole numbers of 1 or more"),
        (["--batch", "1.5"], 2, "whole numbers of 1 or more"),
        (["--new-tokens", "0"], 2, "1 or more new tokens"),
        (["--new-tokens", "400"], 2, "within the context of 256"),
        (["--prompt-tokens", "0"], 2, "1 or more prompt tokens"),
        (["--image-tokens", "25", "--image", "a.png"], 2, "found both"),
        (["--ranking", "best"], 2, "found 'best'"),
        (["--json", "no/such/a.json"], 2, "make it first"),
        (["--device", "cuda"], 3, "CUDAExecutionProvider"),
        (["--engine", "nowhere"], 2, "nowhere"),
    ],
)
def test_bad_input_is_one_line(cli: Run, bundle: Bundle, arguments: list[str], code: int, message: str) -> None:
    found, out, err = cli("bench", bundle.path, *arguments)
    assert (found, out) == (code, "") and err.count("\n") == 1 and message in err
