"""A plan from a config.json: parameter counts as published, bytes as exported, memory that adds up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fastv_trt import plan
from fastv_trt.bundle import Bundle
from fastv_trt.errors import InputError
from fastv_trt.export.sizes import measure
from fastv_trt.gpus import GPUS, RTX_COMPUTE
from fastv_trt.limits import BuildLimits
from tests.conftest import Run
from tests.test_export_errors import LONGROPE

CONFIGS = Path(__file__).parent / "configs"

# Billions of parameters, as the models' own pages give them.
PUBLISHED = {
    "idefics3-8b": 8.46,
    "instructblip-vicuna-13b": 14.19,
    "internvl3-8b": 7.94,
    "llava-1.5-13b": 13.35,
    "llava-1.5-7b": 7.06,
    "llava-next-mistral-7b": 7.57,
    "llava-onevision-qwen2-7b": 8.03,
    "mistral-small-3.1-24b": 24.01,
    "qwen2-vl-2b": 2.21,
    "qwen2-vl-7b": 8.29,
    "qwen2.5-vl-3b": 3.75,
    "qwen2.5-vl-7b": 8.29,
    "qwen3-vl-8b": 8.77,
    "smolvlm-2.2b": 2.25,
    "video-llava-7b": 7.37,
}
TIED = ("qwen2-vl-2b", "qwen2.5-vl-3b")


def planned(run: Run, *arguments: object) -> dict[str, Any]:
    code, out, err = run("plan", *arguments, "--json")
    assert code == 0, err
    content: dict[str, Any] = json.loads(out)
    return content


def test_every_config_has_a_published_count() -> None:
    assert {file.stem for file in CONFIGS.glob("*.json")} == PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models(name: str) -> None:
    sizes = measure(CONFIGS / f"{name}.json", 2)
    assert sizes.model.parameters / 1e9 == pytest.approx(PUBLISHED[name], abs=0.006)
    assert sizes.refusal is None
    head = sizes.model.vocab_size * sizes.model.hidden_size
    assert sum(sizes.graphs.values()) - sizes.model.parameters == (head if name in TIED else 0)


def test_no_weight_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: made.append(t := empty(*a, **k)) or t)
    measure(CONFIGS / "qwen2.5-vl-7b.json", 2)
    assert made
    assert sum(tensor.nbytes for tensor in made if tensor.device.type != "meta") < 1 << 20


def test_graph_sizes_are_those_of_the_export(bundle: Bundle, checkpoints: Any) -> None:
    written = {file.path: file.bytes for file in bundle.manifest.files}
    sizes = measure(checkpoints() / "config.json", bundle.manifest.k)
    record = bundle.manifest.model
    assert sizes.model == record.model_copy(update={"family": sizes.model.family})
    found = sizes.graph_bytes("fp32")
    for graph in ("prefix", "suffix"):  # the norms of so small a model are not in this file
        assert abs(written[f"onnx/{graph}.onnx.data"] - found[graph]) < 2048
    # The tower's last layer is not used, and not exported: the plan is an upper bound.
    assert 0.5 * found["vision"] < written["onnx/vision.onnx.data"] <= found["vision"]


def test_caches_of_the_paper_s_example() -> None:
    """LLaVA-1.5-7B, N = 612, K = 2, fp16: 306 MiB, and 171 MiB at R = 50 %."""
    model = measure(CONFIGS / "llava-1.5-7b.json", 2).model
    found = {cache.ratio: cache for cache in plan.caches(model, "fp16", 2, 36, 576)}
    assert (found[0.0].bytes / 2**20, found[0.5].bytes / 2**20) == (306, 171)
    assert [cache.kept for cache in found.values()] == [576, 288, 144, 58]


def test_the_plan_of_a_7b_model(cli: Run) -> None:
    content = planned(cli, CONFIGS / "llava-1.5-7b.json", "--max-prompt", 1024, "--max-batch", 4)
    assert content["refusal"] is None
    assert sum(content["graphs"].values()) == 2 * 7_063_427_072
    limits, engine = content["limits"], content["engine_bytes"]
    assert (limits["max_prompt"], limits["prefix_capacity"], limits["max_batch"]) == (1024, 1280, 4)
    assert engine["caches"] == 4 * 2 * 32 * 32 * 128 * 1280 * 2  # rows, K and V, layers, heads, size, slots, bytes
    assert engine["plans"] > sum(content["graphs"].values())
    parts = ("plans", "caches", "activations", "context")
    assert engine["total"] == sum(engine[part] for part in parts)
    assert content["build_host_bytes"] == 4 * content["graphs"]["suffix"]
    assert content["profiles"]["prefix"]["prefill"]["S"] == "1:512:1024"
    fits = {gpu["name"]: gpu for gpu in content["gpus"]}
    assert fits["L4"]["fits"] and fits["L4"]["backend"] == "tensorrt-rtx"
    assert fits["H100 SXM"]["backend"] == "tensorrt"


def test_a_larger_model_or_more_rows_fit_fewer_gpus(cli: Run) -> None:
    def fitting(*arguments: object) -> set[str]:
        return {gpu["name"] for gpu in planned(cli, *arguments)["gpus"] if gpu["fits"]}

    small = fitting(CONFIGS / "llava-1.5-7b.json", "--max-prompt", 1024, "--max-batch", 1)
    large = fitting(CONFIGS / "llava-1.5-13b.json", "--max-prompt", 1024, "--max-batch", 1)
    many = fitting(CONFIGS / "llava-1.5-13b.json", "--max-prompt", 1024, "--max-batch", 64)
    assert "L4" in small - large
    assert "L40S" in large - many
    assert many < large < small


def test_rows_that_fit_do_and_one_more_does_not() -> None:
    sizes = measure(CONFIGS / "qwen2.5-vl-7b.json", 2)
    graphs = sizes.graph_bytes("fp16")

    def fits(rows: int) -> dict[str, plan.Fit]:
        limits = BuildLimits.of(sizes.model, max_prompt=2048, max_batch=rows)
        needed = plan.memory(sizes.model, "fp16", 2, graphs, limits, sizes.vision.width, 2048 * 4)
        return {fit.gpu.name: fit for fit in plan.fits(needed)}

    rows = fits(1)["L40S"].rows
    assert rows > 1
    assert fits(rows)["L40S"].fits and not fits(rows + 1)["L40S"].fits


def test_a_model_that_export_refuses_says_so(cli: Run, tmp_path: Path) -> None:
    config = json.loads((CONFIGS / "llava-1.5-7b.json").read_text())
    config["text_config"]["rope_parameters"] = {**LONGROPE, "short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "RoPE" in planned(cli, tmp_path)["refusal"]
    code, out, _ = cli("plan", tmp_path)
    assert code == 0 and "export would refuse it: expected RoPE" in out


def test_the_text_says_what_the_json_says(cli: Run) -> None:
    code, out, _ = cli("plan", CONFIGS / "llava-1.5-7b.json", "--max-prompt", 1024)
    assert code == 0
    for piece in ("7,063,427,072 parameters", "306.0 MiB", "171.0 MiB", "x 0.56", "H200", "prefix prefill: "):
        assert piece in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--k", 32], "K in 0..31 for a decoder of 32 layers, found 32"),
        (["--dtype", "int8"], "expected dtype fp32, fp16, bf16, found 'int8'"),
        (["--max-prompt", 5000], "max-prompt 5000 is not in 1..4096"),
        (["--image-tokens", -1], "0 or more image tokens"),
        (["--kept", "1:2"], "min:opt:max"),
    ],
)
def test_bad_input(cli: Run, arguments: list[object], message: str) -> None:
    code, out, err = cli("plan", CONFIGS / "llava-1.5-7b.json", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1) and message in err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "config.json that transformers knows"),
        ('{"model_type": "surprise"}', "config.json that transformers knows"),
        ('{"architectures": []}', "config.json that transformers knows"),
        ('{"model_type": "llama"}', "a vision-language model"),
    ],
)
def test_configs_that_are_none(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        measure(tmp_path, 0)
    assert "\n" not in str(caught.value)


def test_no_config_at_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected a config.json at .*, found none"):
        measure(tmp_path, 0)


def test_the_table_of_gpus_agrees_with_the_library() -> None:
    trt = pytest.importorskip("tensorrt_rtx")
    from fastv_trt.nvidia import Library

    assert Library("tensorrt-rtx", trt).ahead_of_time == RTX_COMPUTE
    assert len({gpu.name for gpu in GPUS}) == len(GPUS)
