"""Checkpoints as they come from hubs and training runs: other layouts load the same weights, others are refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fastv_trt.bundle import Bundle
from fastv_trt.errors import InputError, UnsupportedModelError
from fastv_trt.export import checkpoint, export
from fastv_trt.families import family_of
from fastv_trt.families.preprocessing import Preprocessing
from tests.test_export_errors import copy, edit, refused  # noqa: F401  (a fixture)

State = dict[str, torch.Tensor]
HEAD, LANGUAGE = "language_model.lm_head.weight", "model.language_model"


def rewrite(folder: Path, change: Callable[[State], State]) -> None:
    """Replace the weights of model.safetensors by `change` of them."""
    state = {name: weight.clone() for name, weight in load_file(folder / "model.safetensors").items()}
    save_file(change(state), folder / "model.safetensors", {"format": "pt"})


def loaded(folder: Path, dtype: torch.dtype = torch.float32, allow_pickle: bool = False) -> State:
    """What export would trace."""
    found = checkpoint.inspect_checkpoint(folder, 2, allow_pickle)
    with tempfile.TemporaryDirectory() as scratch:
        return checkpoint.load(found, dtype, Path(scratch))[0].state_dict()


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def shard(folder: Path, ending: str = "safetensors") -> None:
    """Split the weights over two files with an index, as large checkpoints are."""
    state = load_file(folder / "model.safetensors")
    names, stem = sorted(state), "model" if ending == "safetensors" else "pytorch_model"
    where: dict[str, str] = {}
    for index, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"{stem}-{index:05}-of-00002.{ending}"
        weights = {name: state[name].clone() for name in part}
        if ending == "safetensors":
            save_file(weights, folder / file, {"format": "pt"})
        else:
            torch.save(weights, folder / file)
        where |= dict.fromkeys(part, file)
    (folder / f"{stem}.{ending}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (folder / "model.safetensors").unlink()


def test_shards_with_an_index(copy: Path, checkpoints: Callable[..., Path]) -> None:  # noqa: F811
    shard(copy)
    assert same(loaded(copy), loaded(checkpoints()))


@pytest.mark.parametrize("content", ["not json", "{}", '{"weight_map": {"a": "../outside.safetensors"}}'])
def test_an_index_that_is_none(copy: Path, content: str) -> None:  # noqa: F811
    shard(copy)
    (copy / "model.safetensors.index.json").write_text(content)
    refused(copy, "an index with a weight_map")


@pytest.mark.parametrize("sharded", [False, True])
def test_pickled_weights_are_read_only_if_asked(
    copy: Path,  # noqa: F811
    checkpoints: Callable[..., Path],
    sharded: bool,
) -> None:
    if sharded:
        shard(copy, "bin")
    else:
        torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
        (copy / "model.safetensors").unlink()
    refused(copy, "a pickle, which may run code when it is read; .*--allow-pickle")
    assert same(loaded(copy, allow_pickle=True), loaded(checkpoints()))
    found = checkpoint.inspect_checkpoint(copy, 2, allow_pickle=True)
    assert checkpoint.notes(found, "fp32") == ("weights were read from pickles (.bin), tensors only",)


class Code:
    """Unpickled without care, it makes a file."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


def test_a_pickle_with_code_is_refused_and_not_run(copy: Path) -> None:  # noqa: F811
    state = load_file(copy / "model.safetensors")
    torch.save({**state, "more": Code(copy / "trace")}, copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    refused(copy, "tensors and nothing else", allow_pickle=True)
    assert not (copy / "trace").exists()


def hub_cache(folder: Path, root: Path) -> Path:
    """The folder as the hub's cache keeps it: content in blobs, a snapshot of links. Returns the repository."""
    repository = root / "models--org--name"
    snapshot = repository / "snapshots" / "0123abcd"
    for part in (repository / "blobs", snapshot, repository / "refs"):
        part.mkdir(parents=True)
    for index, file in enumerate(sorted(folder.iterdir())):
        shutil.copy(file, repository / "blobs" / f"{index:040x}")
        (snapshot / file.name).symlink_to(Path("../../blobs") / f"{index:040x}")
    (repository / "refs" / "main").write_text("0123abcd")
    return repository


def test_a_hub_cache_snapshot_of_links(checkpoints: Callable[..., Path], tmp_path: Path) -> None:
    snapshot = hub_cache(checkpoints(), tmp_path / "hub") / "snapshots" / "0123abcd"
    assert same(loaded(snapshot), loaded(checkpoints()))
    Preprocessing.load(snapshot, None).save(tmp_path / "processor", None)
    assert not any(path.is_symlink() for path in (tmp_path / "processor").iterdir())


def test_a_hub_cache_whose_download_broke_off(checkpoints: Callable[..., Path], tmp_path: Path) -> None:
    snapshot = hub_cache(checkpoints(), tmp_path / "hub") / "snapshots" / "0123abcd"
    (snapshot / "model.safetensors").resolve().unlink()
    with pytest.raises(InputError, match=r"model.safetensors a link to nothing: the download is incomplete"):
        loaded(snapshot)


@pytest.mark.parametrize("above", ["", "models--org--name", "models--org--name/snapshots"])
def test_a_folder_of_the_hub_cache_above_the_snapshot(
    checkpoints: Callable[..., Path], tmp_path: Path, above: str
) -> None:
    repository = hub_cache(checkpoints(), tmp_path / "hub")
    wanted = f"this is a hub cache: give .*{'REVISION' if not above else repository / 'snapshots' / '0123abcd'}"
    with pytest.raises(InputError, match=wanted):
        checkpoint.read_config(tmp_path / "hub" / above)


def test_a_hub_id_instead_of_a_folder() -> None:
    with pytest.raises(InputError, match="hf download org/name-7b-hf --local-dir FOLDER"):
        checkpoint.read_config("org/name-7b-hf")


def test_a_file_instead_of_a_folder(copy: Path) -> None:  # noqa: F811
    with pytest.raises(InputError, match="found a file; give the folder"):
        checkpoint.read_config(copy / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("consolidated.safetensors", "only consolidated.safetensors; transformers reads model.safetensors"),
        ("model.fp16.safetensors", "or a variant"),
        ("model-q4.gguf", "only model-q4.gguf, a llama.cpp file"),
    ],
)
def test_weights_of_another_layout(copy: Path, name: str, message: str) -> None:  # noqa: F811
    (copy / "model.safetensors").rename(copy / name)
    refused(copy, message)


def test_a_single_file_counts_before_others(copy: Path, checkpoints: Callable[..., Path]) -> None:  # noqa: F811
    save_file({"layers.0.weight": torch.zeros(2)}, copy / "consolidated.safetensors")
    assert same(loaded(copy), loaded(checkpoints()))


@pytest.mark.parametrize("missing", [["tokenizer.json", "tokenizer_config.json"], ["processor_config.json"]])
def test_processor_files_that_training_left_out(copy: Path, missing: list[str]) -> None:  # noqa: F811
    for name in missing:
        (copy / name).unlink()
    edit(copy, _name_or_path="org/base")
    refused(copy, r"training often leaves it out: AutoProcessor.from_pretrained\('org/base'\).save_pretrained")


def to(dtype: torch.dtype) -> Callable[[State], State]:
    return lambda state: {name: weight.to(dtype) for name, weight in state.items()}


@pytest.mark.parametrize("config_says", ["bfloat16", "float32", None])
def test_a_cast_is_said_whatever_the_config_says(copy: Path, config_says: str | None) -> None:  # noqa: F811
    rewrite(copy, to(torch.bfloat16))
    edit(copy, dtype=config_says)
    found = checkpoint.inspect_checkpoint(copy, 2)
    assert checkpoint.notes(found, "fp32") == ("weights are stored as bf16 and were cast to fp32",)
    assert checkpoint.notes(found, "bf16") == ()
    state, stored = loaded(copy), load_file(copy / "model.safetensors")
    assert all(weight.dtype == torch.float32 for weight in state.values())
    assert torch.equal(state["lm_head.weight"], stored[HEAD].float())


def test_weights_of_two_dtypes(copy: Path) -> None:  # noqa: F811
    rewrite(copy, lambda state: {n: w.bfloat16() if "vision" in n else w for n, w in state.items()})
    found = checkpoint.inspect_checkpoint(copy, 2)
    assert checkpoint.notes(found, "fp32") == ("weights are stored as bf16 and fp32 and were cast to fp32",)


def test_weights_that_the_model_has_no_use_for_are_named(copy: Path) -> None:  # noqa: F811
    rewrite(copy, lambda state: {**state, "extra.weight": torch.ones(2), "rotary_emb.inv_freq": torch.ones(2)})
    found = checkpoint.inspect_checkpoint(copy, 2)
    with tempfile.TemporaryDirectory() as scratch:
        _, said = checkpoint.load(found, torch.float32, Path(scratch))
    assert said == ("weights of the checkpoint that this model does not use: 1, such as extra.weight",)


def test_parts_that_a_model_keeps_in_fp32_are_not_rounded(
    copy: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers import LlavaForConditionalGeneration

    monkeypatch.setattr(LlavaForConditionalGeneration, "_keep_in_fp32_modules", ["multi_modal_projector"])
    name = "model.multi_modal_projector.linear_1.weight"
    state, stored = loaded(copy, torch.float16), loaded(copy)
    assert state["lm_head.weight"].dtype == torch.float16
    assert torch.equal(state[name], stored[name])


def test_weights_beyond_fp16_are_not_made_infinite(copy: Path) -> None:  # noqa: F811
    def enlarge(state: State) -> State:
        state[HEAD][0, 0] = 1e5
        return to(torch.bfloat16)(state)

    rewrite(copy, enlarge)
    refused(copy, r"within the range of torch.float16, found .*lm_head.weight beyond it", dtype="fp16")


def names_of_the_hub(state: State) -> State:
    """As LLaVA-1.5 lies on the hub: the tower within a vision_model, and a buffer that is no weight."""
    renamed = {name.replace("vision_tower.", "vision_tower.vision_model."): weight for name, weight in state.items()}
    return {**renamed, "vision_tower.vision_model.embeddings.position_ids": torch.arange(26)[None]}


def names_since_4_52(state: State) -> State:
    """Modules as they are called in the classes themselves: everything but the head under model."""

    def rename(name: str) -> str:
        name = name.removeprefix("language_model.") if name == HEAD else name.replace("language_model.model", LANGUAGE)
        return name if name.startswith(("lm_head", "model.")) else f"model.{name}"

    return {rename(name): weight for name, weight in state.items()}


def older_config(folder: Path) -> None:
    """config.json as it was before 5.0: rope_theta, torch_dtype, image_token_index."""
    content = json.loads((folder / "config.json").read_text())
    for part in (content, content["text_config"], content["vision_config"]):
        part.pop("rope_parameters", None)
        part.pop("dtype", None)
    content["text_config"]["rope_theta"] = 5e5
    content["torch_dtype"] = "float32"
    content["image_token_index"] = content.pop("image_token_index", content.pop("image_token_id", 4))
    (folder / "config.json").write_text(json.dumps(content))


@pytest.mark.parametrize("names", [names_of_the_hub, names_since_4_52])
def test_older_names_and_configs_load_the_same_weights(copy: Path, names: Callable[[State], State]) -> None:  # noqa: F811
    edit(copy, text_config__rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    newer = loaded(copy)
    older_config(copy)
    rewrite(copy, names)
    assert same(loaded(copy), newer)
    config = checkpoint.read_config(copy)
    assert config.image_token_id == 4 and config.text_config.rope_parameters["rope_theta"] == 5e5


@pytest.mark.slow
def test_an_older_checkpoint_gives_the_same_graphs(copy: Path, bundle: Bundle, tmp_path: Path) -> None:  # noqa: F811
    older_config(copy)
    edit(copy, text_config__rope_theta=1e4)
    rewrite(copy, names_of_the_hub)
    older = export(copy, tmp_path / "bundle").bundle
    first, second = ({file.path: file.sha256 for file in b.manifest.files} for b in (bundle, older))
    assert any(path.endswith("prefix.onnx.data") for path in first)
    assert first == second


@pytest.mark.parametrize("where", ["text_config", "model"])
def test_a_tied_head_that_is_not_stored(
    checkpoints: Callable[..., Path],
    tmp_path: Path,
    where: str,
) -> None:
    folder = Path(shutil.copytree(checkpoints(), tmp_path / "checkpoint"))
    rewrite(folder, lambda state: {n: w for n, w in state.items() if n != HEAD})
    edit(folder, **{"tie_word_embeddings" if where == "model" else "text_config__tie_word_embeddings": True})
    state = loaded(folder)
    assert torch.equal(state["lm_head.weight"], state["model.language_model.embed_tokens.weight"])


def test_an_untied_head_that_is_missing(copy: Path) -> None:  # noqa: F811
    rewrite(copy, lambda state: {n: w for n, w in state.items() if n != HEAD})
    refused(copy, "every parameter .* found 1 missing: lm_head.weight")


def test_processor_files_before_patch_size(copy: Path) -> None:  # noqa: F811
    content = json.loads((copy / "processor_config.json").read_text())
    for name in ("patch_size", "vision_feature_select_strategy", "num_additional_image_tokens"):
        del content[name]
    (copy / "processor_config.json").write_text(json.dumps(content))
    config = checkpoint.read_config(copy)  # which knows the sizes that image tokens are counted with
    assert family_of(config).settings(config, Preprocessing.load(copy, None))["tokens"] == 25


@pytest.mark.parametrize("beside_weights", [False, True])
def test_a_lora_adapter(copy: Path, beside_weights: bool) -> None:  # noqa: F811
    (copy / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base", "r": 8}))
    if not beside_weights:
        (copy / "config.json").unlink()
        (copy / "model.safetensors").rename(copy / "adapter_model.safetensors")
    refused(copy, r"a PEFT adapter of org/base .*merge_and_unload\(\)", UnsupportedModelError)


def test_lora_weights_that_were_not_merged(copy: Path) -> None:  # noqa: F811
    rewrite(copy, lambda state: {**state, "model.language_model.layers.0.mlp.up_proj.lora_A.weight": torch.ones(2)})
    refused(copy, r"the LoRA weight .*lora_A.weight; call merge_and_unload", UnsupportedModelError)


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "fp8", "compressed-tensors"])
@pytest.mark.parametrize("where", ["quantization_config", "text_config__quantization_config"])
def test_quantized_checkpoints_by_their_config(copy: Path, method: str, where: str) -> None:  # noqa: F811
    edit(copy, **{where: {"quant_method": method, "bits": 4}})
    refused(copy, rf"found a quantization_config \({method}\): .* export the checkpoint", UnsupportedModelError)


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("up_proj.qweight", torch.zeros(8, 8, dtype=torch.int32)),  # GPTQ, AWQ
        ("up_proj.weight", torch.zeros(8, 8, dtype=torch.uint8)),  # bitsandbytes, 4 bit
        ("up_proj.SCB", torch.zeros(8)),  # bitsandbytes, 8 bit
        ("up_proj.weight", torch.zeros(8, 8).to(torch.float8_e4m3fn)),
        ("up_proj.weight_scale_inv", torch.zeros(1)),
    ],
)
def test_quantized_weights_whose_config_says_nothing(copy: Path, name: str, weight: torch.Tensor) -> None:  # noqa: F811
    rewrite(copy, lambda state: {**state, f"model.language_model.layers.0.mlp.{name}": weight})
    refused(copy, f"found .*{name} .*, a quantized one", UnsupportedModelError)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_terminated_export_leaves_nothing(copy: Path) -> None:  # noqa: F811
    code = "from fastv_trt.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "export", str(copy), str(copy.parent / "bundle")],
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not list(copy.parent.glob(".bundle.*.partial")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert err.rstrip().endswith("fastv-trt: ended by SIGTERM")
    assert {path.name for path in copy.parent.iterdir()} == {copy.name}
