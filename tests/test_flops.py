"""`fastv-trt flops`: the paper's table, other ways to count, and what a GPU's data sheet allows."""

from __future__ import annotations

import json

import pytest

from fastv_trt import cost, paper
from fastv_trt.gpus import GPUS, named
from tests.conftest import Run


def test_the_papers_column_is_reproduced(cli: Run) -> None:
    code, out, _ = cli("flops", "--preset", "paper", "--json")
    rows = json.loads(out)["rows"]
    assert code == 0 and len(rows) == len(paper.TABLE) == 23
    for row in rows:
        if row["k"] > 0 or row["ratio"] == 0:
            tolerance = 0.1 if row["model"].endswith("13b") else 0.5
            assert abs(row["difference"]) <= tolerance, row
    code, out, _ = cli("flops", "--preset", "paper")
    assert code == 0 and "+0.41" in out  # the largest difference of a row with K > 0 is printed


def test_visual_only_starts_from_the_figure_of_later_papers() -> None:
    """3.82 TFLOPs for 576 image tokens in LLaVA-1.5-7B: PyramidDrop and SparseVLM."""
    count = cost.visual_flops(paper.MODELS["llava-1.5-7b"], 2, 576, 576)
    assert round(count / 1e12, 2) == 3.82


def test_exact_counts_every_weight_twice_per_token() -> None:
    model = paper.MODELS["llava-1.5-7b"]
    elements = 32 * cost.layer_weights(model) + model.hidden_size * model.vocab_size
    # 6.74 billion parameters, of which the embedding, the norms, the tower and the projector are not multiplied here.
    assert model.parameters - elements == 262_668_288 // 2 + 266_240 + 20_979_712 + 303_507_456
    layers, head = cost.decode_work(model, "fp16", 2, 0, 0)
    assert layers.flops + head.flops == 2 * elements
    assert layers.bytes + head.bytes == 2 * elements


def test_a_roofline_is_the_slower_of_computing_and_moving() -> None:
    assert cost.Work(flops=100, bytes=10).seconds(10.0, 10.0) == 10.0
    assert cost.Work(flops=10, bytes=100).seconds(10.0, 10.0) == 10.0


def test_pruning_helps_prefill_until_the_weights_take_longer_to_read_than_to_use(cli: Run) -> None:
    code, out, _ = cli("flops", "--gpu", "H200,A40", "--json")
    rows = json.loads(out)["rows"]
    assert code == 0 and [row["ratio"] for row in rows] == [0, 0.5, 0.75, 0.9]
    times = [row["roofline"]["H200"]["ttft_seconds"] for row in rows]
    assert times == sorted(times, reverse=True)
    model = paper.MODELS["llava-1.5-7b"]
    weights = 2 * (32 * cost.layer_weights(model) + model.hidden_size * model.vocab_size)
    assert all(time > weights / named("H200").bandwidth for time in times)
    assert set(rows[0]["roofline"]) == {"H200", "A40"}


def test_a_bundle_gives_its_own_sizes(cli: Run, bundle: object) -> None:
    path = bundle.path  # type: ignore[attr-defined]
    code, out, _ = cli("flops", path, "--json", "--ratios", "0,1", "--image-tokens", 25, "--text-tokens", 10)
    content = json.loads(out)
    manifest = bundle.manifest  # type: ignore[attr-defined]
    assert code == 0 and (content["k"], content["dtype"]) == (2, "fp32")
    assert content["rows"][1]["flops"] == cost.prefill_flops(manifest.model, 2, 35, 10)
    assert cli("flops", path)[0] == 0


def test_gpus_are_found_by_a_part_of_their_name() -> None:
    assert named("l4").name == "L4" and named("orin").compute == "8.7"
    assert len({gpu.name for gpu in GPUS}) == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "best"], "found 'best'"),
        (["--model", "gpt"], "give a bundle"),
        (["--k", "32"], "K in 0..31, found 32"),
        (["--ratios", "a"], "numbers separated by commas"),
        (["--ratios", "1.5"], "found 1.5"),
        (["--gpu", "abacus"], "found 'abacus'"),
        (["--gpu", "h"], "found 'h'"),
        (["--dtype", "int3"], "found 'int3'"),
        (["--text-tokens", "0"], "1 or more text tokens"),
        (["--preset", "visual-only", "--image-tokens", "0"], "counts nothing else"),
    ],
)
def test_bad_input_is_one_line(cli: Run, arguments: list[str], message: str) -> None:
    code, out, err = cli("flops", *arguments)
    assert code == 2 and out == "" and err.count("\n") == 1 and message in err
