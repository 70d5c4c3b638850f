"""Small random LLaVA checkpoints made with the real classes and processors, and bundles exported from them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import pytest

from fastv_trt.bundle import Bundle
from fastv_trt.cli import main
from fastv_trt.runtime import Runtime

LAYERS, SIDE, PATCH = 4, 40, 8  # 5x5 = 25 image tokens
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: "
    "{% for p in m['content'] if p['type'] == 'image' %}{{ '<image>\n' }}{% endfor %}"
    "{% for p in m['content'] if p['type'] == 'text' %}{{ p['text'] }}{% endfor %}"
    "{% if m['role'] == 'assistant' %}{{ '</s>' }}{% else %}{{ ' ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


def decoder_config(kind: str, vocab: int, **changes: Any) -> Any:
    """A small decoder config. The wide initialisation makes attention far from uniform."""
    from transformers import LlamaConfig, MistralConfig, Qwen2Config

    classes = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config}
    common: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.15,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 3,
        "sliding_window": None,
    }
    if kind == "llama":
        common.pop("sliding_window")
    return classes[kind](**(common | changes))


def make_processor(tower: str, template: str | None = TEMPLATE) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import CLIPImageProcessorPil, LlavaProcessor, PreTrainedTokenizerFast, SiglipImageProcessorPil

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>", "<pad>", "<image>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=261, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        extra_special_tokens={"image_token": "<image>"},
    )
    size = {"height": SIDE, "width": SIDE}
    images: Any
    if tower == "clip":
        images = CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=size)
    else:
        images = SiglipImageProcessorPil(size=size)
    return LlavaProcessor(
        image_processor=images,
        tokenizer=fast,
        patch_size=PATCH,
        vision_feature_select_strategy="default" if tower == "clip" else "full",
        num_additional_image_tokens=1 if tower == "clip" else 0,
        chat_template=template,
    )


def save_checkpoint(
    folder: Path, decoder: str = "llama", tower: str = "clip", template: str | None = TEMPLATE, **changes: Any
) -> Path:
    """Write a random LLaVA checkpoint with 25 image tokens per image and return its folder."""
    import torch
    from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration, SiglipVisionConfig

    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": SIDE,
        "patch_size": PATCH,
    }
    vision: Any = CLIPVisionConfig(**sizes) if tower == "clip" else SiglipVisionConfig(**sizes)
    processor = make_processor(tower, template)
    config = LlavaConfig(
        vision_config=vision,
        text_config=decoder_config(decoder, len(processor.tokenizer), **changes),
        image_token_index=4,
        image_seq_length=(SIDE // PATCH) ** 2,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default" if tower == "clip" else "full",
    )
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config).eval()
    with torch.no_grad():  # random features as large as the embeddings, so that pictures matter
        model.model.multi_modal_projector.linear_2.weight.mul_(20.0)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Checkpoints by decoder and tower, made once."""
    made: dict[tuple[Any, ...], Path] = {}

    def get(decoder: str = "llama", tower: str = "clip", **changes: Any) -> Path:
        key = (decoder, tower, *sorted(changes.items()))
        if key not in made:
            made[key] = save_checkpoint(tmp_path_factory.mktemp("checkpoint"), decoder, tower, **changes)
        return made[key]

    return get


@pytest.fixture(scope="session")
def bundles(checkpoints: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Bundle]:
    """Bundles by decoder, tower, K and dtype, exported once. Treat them as read-only."""
    from fastv_trt.export import export

    made: dict[tuple[Any, ...], Bundle] = {}

    def get(decoder: str = "llama", tower: str = "clip", k: int = 2, dtype: str = "fp32") -> Bundle:
        key = (decoder, tower, k, dtype)
        if key not in made:
            folder = tmp_path_factory.mktemp("bundles") / "bundle"
            names = ("last-query", "received") if k else None  # the others are tested where they matter
            made[key] = export(checkpoints(decoder, tower), folder, k=k, dtype=dtype, rankings=names).bundle
        return made[key]

    return get


@pytest.fixture(scope="session")
def bundle(bundles: Callable[..., Bundle]) -> Bundle:
    """The ordinary one: llama, CLIP, K = 2, fp32."""
    return bundles()


@pytest.fixture(scope="session")
def runtime(bundle: Bundle) -> Runtime:
    return Runtime.load(bundle)


def picture(seed: int, height: int = 60, width: int = 50) -> np.ndarray:
    """A seeded random picture, uint8 [H, W, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `fastv-trt ARGUMENTS` in this process: (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["fastv-trt", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        code = stopped.value.code
        return (code if isinstance(code, int) else 0), captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def half(bundles: Callable[..., Bundle]) -> Bundle:
    """The default bundle in fp16. Read-only."""
    return bundles(dtype="fp16")
