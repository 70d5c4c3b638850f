"""What cannot be exported is refused in one line, before anything is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from fastv_trt.errors import InputError, UnsupportedModelError
from fastv_trt.export import export

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "factor": 2.0,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 128,
}


@pytest.fixture
def copy(checkpoints: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoints(), tmp_path / "checkpoint"))


def edit(folder: Path, **changes: object) -> None:
    """Change config.json; a name a__b reaches into a sub-config."""
    content = json.loads((folder / "config.json").read_text())
    for name, value in changes.items():
        *path, last = name.split("__")
        target = content
        for part in path:
            target = target[part]
        target[last] = value
    (folder / "config.json").write_text(json.dumps(content))


def refused(folder: Path, message: str, kind: type[Exception] = InputError, **options: object) -> None:
    out = folder.parent / "bundle"
    with pytest.raises(kind, match=message) as caught:
        export(folder, out, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert {p.name for p in folder.parent.iterdir()} == {folder.name}, "something was written"


@pytest.mark.parametrize("k", [-1, 4, 99])
def test_k_beyond_the_layers(copy: Path, k: int) -> None:
    refused(copy, rf"K in 0..3 for a decoder of 4 layers, found {k}", k=k)


def test_attention_ranking_at_k_0(copy: Path) -> None:
    refused(copy, "no attention ranking at K=0, found 'last-query'", k=0, rankings=["last-query"])


@pytest.mark.parametrize(("ranking", "message"), [("best", "found 'best'"), ("random", "needs no graph")])
def test_rankings_that_are_none(copy: Path, ranking: str, message: str) -> None:
    refused(copy, message, rankings=[ranking])


def test_an_unknown_dtype(copy: Path) -> None:
    refused(copy, "fp32, fp16, bf16, found 'int8'", dtype="int8")


def test_an_unknown_family(copy: Path) -> None:
    edit(copy, architectures=["LlamaForCausalLM"])
    refused(copy, "checkpoint of LlavaForConditionalGeneration.*found LlamaForCausalLM", UnsupportedModelError)


def test_a_family_that_is_not_causal(copy: Path) -> None:
    edit(copy, architectures=["Gemma3ForConditionalGeneration"])
    refused(copy, "causal over images.*bidirectionally", UnsupportedModelError)


def test_an_unknown_model_type(copy: Path) -> None:
    edit(copy, model_type="surprise")
    refused(copy, "config.json that transformers knows")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text_config__rope_parameters": LONGROPE}, "'longrope'"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config"),
    ],
)
def test_features_that_the_graphs_lack(copy: Path, changes: dict[str, object], message: str) -> None:
    edit(copy, **changes)
    refused(copy, message, UnsupportedModelError)


def test_a_sliding_window(checkpoints: Callable[..., Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoints("mistral"), tmp_path / "checkpoint"))
    edit(folder, text_config__sliding_window=64)
    refused(folder, "full attention in every layer, found sliding_window=64", UnsupportedModelError)


def test_a_checkpoint_without_vision_weights(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    text = {name: w.clone() for name, w in weights.items() if "vision_tower" not in name}
    save_file(text, copy / "model.safetensors", {"format": "pt"})
    refused(copy, "vision weights .* found none; this is only the language model")


def test_a_checkpoint_with_a_weight_missing(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    name = next(n for n in weights if n.endswith("mlp.up_proj.weight"))
    save_file({n: w.clone() for n, w in weights.items() if n != name}, copy / "model.safetensors", {"format": "pt"})
    refused(copy, "every parameter .* found 1 missing: .*up_proj")


def test_weights_of_another_shape(copy: Path) -> None:
    edit(copy, text_config__intermediate_size=128)
    refused(copy, "weights that fit config.json")


def test_a_damaged_weight_file(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00not a header")
    refused(copy, "whole safetensors file")


def test_pickled_weights_only(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    refused(copy, "only pytorch_model.bin, a pickle")


def test_no_weights(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    refused(copy, r"weights \(\*.safetensors\)")


def test_a_shard_that_is_missing(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(copy, "2 weight files .* model-00001-of-00002.safetensors missing")


def test_no_image_processor(copy: Path) -> None:
    for name in ("processor_config.json", "preprocessor_config.json"):
        (copy / name).unlink(missing_ok=True)
    refused(copy, "an image processor")


def test_no_tokenizer(copy: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (copy / name).unlink(missing_ok=True)
    refused(copy, "a tokenizer .* found none; training often leaves it out")


def test_no_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    refused(folder, "save_pretrained folder with config.json")


def test_an_output_that_exists(copy: Path) -> None:
    (copy.parent / "bundle").mkdir()
    with pytest.raises(InputError, match="not to exist"):
        export(copy, copy.parent / "bundle")
