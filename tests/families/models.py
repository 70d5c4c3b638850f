"""Small random checkpoints of every family, made with the real classes, and processors made offline."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

LAYERS = 5
TEMPLATE = (
    "{%% for m in messages %%}{{ '<s>' if loop.first else '' }}{{ m['role'] }}: {%% for p in m['content'] %%}"
    "{%% if p['type'] == 'image' %%}{{ '%(image)s' }}{%% elif p['type'] == 'video' %%}{{ '%(video)s' }}"
    "{%% else %%}{{ p['text'] }}{%% endif %%}{%% endfor %%}"
    "{%% if m['role'] == 'assistant' %%}{{ '</s>' }}{%% else %%}{{ '\n' }}{%% endif %%}{%% endfor %%}"
    "{%% if add_generation_prompt %%}{{ 'assistant:' }}{%% endif %%}"
)


def tokenizer(named: dict[str, str], others: tuple[str, ...] = (), *, image: str = "", video: str = "") -> Any:
    """A byte-level tokenizer with special tokens; `image` and `video` are what a chat template writes for them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    base = Tokenizer(models.BPE())
    base.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    base.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>", "<pad>", *named.values(), *others]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + len(special), special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    base.train_from_iterator([], trainer)
    base.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=base,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        extra_special_tokens={**named, **{f"extra_{i}": token for i, token in enumerate(others)}},
    )
    if image:
        fast.chat_template = TEMPLATE % {"image": image, "video": video}
    return fast


def text(vocab: int, **changes: Any) -> dict[str, Any]:
    """A small decoder. The wide initialisation makes attention far from uniform."""
    return {
        "vocab_size": vocab,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "initializer_range": 0.15,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 3,
        **changes,
    }


def tower(side: int, patch: int, **changes: Any) -> dict[str, Any]:
    return {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": side,
        "patch_size": patch,
        **changes,
    }


def save(folder: Path, model: Any, parts: dict[str, Any], louder: Any, times: float = 20.0) -> Path:
    """Write a checkpoint. `louder` is scaled up: random features as large as embeddings, so that pictures matter."""
    import torch

    with torch.no_grad():
        louder.weight.mul_(times)
    model.eval().save_pretrained(folder)
    for name, part in parts.items():
        if name == "video":
            (folder / "video_preprocessor_config.json").write_text(json.dumps(part))
        elif name == "prompt":
            part.save_pretrained(folder / "qformer_tokenizer")
        else:
            part.save_pretrained(folder)
    return folder


def seeded(kind: Any, config: Any) -> Any:
    import torch

    torch.manual_seed(0)
    return kind(config)


def llava_next(folder: Path) -> Path:
    from transformers import CLIPVisionConfig, LlavaNextConfig, LlavaNextForConditionalGeneration, MistralConfig
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

    words = tokenizer({"image_token": "<image>"}, image="<image>\n")
    choices = [[40, 80], [80, 40], [80, 80], [40, 120], [120, 40]]
    config = LlavaNextConfig(
        vision_config=CLIPVisionConfig(**tower(40, 8)),
        text_config=MistralConfig(**text(len(words), sliding_window=None)),
        image_token_index=4,
        image_grid_pinpoints=choices,
        image_seq_length=25,
    )
    model = seeded(LlavaNextForConditionalGeneration, config)
    pictures = LlavaNextImageProcessorPil(
        size={"shortest_edge": 40}, crop_size={"height": 40, "width": 40}, image_grid_pinpoints=choices
    )
    return save(folder, model, {"tokenizer": words, "pictures": pictures}, model.model.multi_modal_projector.linear_2)


def llava_onevision(folder: Path) -> Path:
    from transformers import (
        LlavaOnevisionConfig,
        LlavaOnevisionForConditionalGeneration,
        Qwen2Config,
        SiglipVisionConfig,
    )
    from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil

    words = tokenizer({"image_token": "<image>", "video_token": "<video>"}, image="<image>\n", video="<video>\n")
    choices = [[40 * h, 40 * w] for h in range(1, 5) for w in range(1, 5)]
    config = LlavaOnevisionConfig(
        vision_config=SiglipVisionConfig(**tower(40, 8, vision_use_head=False)),
        text_config=Qwen2Config(**text(len(words), tie_word_embeddings=True)),
        image_token_index=4,
        video_token_index=5,
        image_grid_pinpoints=choices,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        vision_aspect_ratio="anyres_max_4",
    )
    model = seeded(LlavaOnevisionForConditionalGeneration, config)
    pictures = LlavaOnevisionImageProcessorPil(size={"height": 40, "width": 40}, image_grid_pinpoints=choices)
    video = {"size": {"height": 40, "width": 40}, "video_processor_type": "LlavaOnevisionVideoProcessor"}
    parts = {"tokenizer": words, "pictures": pictures, "video": video}
    return save(folder, model, parts, model.model.multi_modal_projector.linear_2)


def video_llava(folder: Path) -> Path:
    from transformers import (
        CLIPVisionConfig,
        LlamaConfig,
        VideoLlavaConfig,
        VideoLlavaForConditionalGeneration,
        VideoLlavaImageProcessor,
    )

    words = tokenizer({"image_token": "<image>", "video_token": "<video>"}, image="<image>\n", video="<video>\n")
    config = VideoLlavaConfig(
        vision_config=CLIPVisionConfig(**tower(32, 8)),
        text_config=LlamaConfig(**text(len(words))),
        image_token_index=4,
        video_token_index=5,
    )
    model = seeded(VideoLlavaForConditionalGeneration, config)
    crop = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    video = {**crop, "do_center_crop": True, "video_processor_type": "VideoLlavaVideoProcessor"}
    parts = {"tokenizer": words, "pictures": VideoLlavaImageProcessor(**crop), "video": video}
    return save(folder, model, parts, model.model.multi_modal_projector.linear_2)


def instructblip(folder: Path) -> Path:
    from transformers import InstructBlipConfig, InstructBlipForConditionalGeneration, LlamaConfig
    from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

    words = tokenizer({"image_token": "<image>"})
    config = InstructBlipConfig(
        vision_config=tower(32, 8),
        qformer_config={
            "vocab_size": len(words),
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "encoder_hidden_size": 32,
            "initializer_range": 0.3,
        },
        text_config=LlamaConfig(**text(len(words), num_key_value_heads=4)).to_dict(),
        num_query_tokens=8,
        image_token_index=4,
        initializer_range=0.15,
    )
    model = seeded(InstructBlipForConditionalGeneration, config)
    import torch

    torch.nn.init.normal_(model.query_tokens, std=1.0)
    parts = {
        "tokenizer": words,
        "pictures": BlipImageProcessorPil(size={"height": 32, "width": 32}),
        "prompt": tokenizer({"image_token": "<image>"}),
    }
    return save(folder, model, parts, model.language_projection)


QWEN = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}


def qwen_parts(patch: int) -> dict[str, Any]:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    size = {"shortest_edge": 2 * 2 * (2 * patch) ** 2, "longest_edge": 40 * (2 * patch) ** 2}
    around = "<|vision_start|>%s<|vision_end|>"
    words = tokenizer(QWEN, image=around % QWEN["image_token"], video=around % QWEN["video_token"])
    values = {"patch_size": patch, "merge_size": 2, "temporal_patch_size": 2, "size": size}
    return {
        "tokenizer": words,
        "pictures": Qwen2VLImageProcessorPil(**values),
        "video": {**values, "video_processor_type": "Qwen2VLVideoProcessor"},
    }


def rope(**more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3], **more}


def qwen_ids() -> dict[str, int]:
    return {"image_token_id": 4, "video_token_id": 5, "vision_start_token_id": 6, "vision_end_token_id": 7}


def qwen2_vl(folder: Path) -> Path:
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    parts = qwen_parts(8)
    config = Qwen2VLConfig(
        text_config=text(len(parts["tokenizer"]), rope_parameters=rope()),
        vision_config={"depth": 3, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 8},
        **qwen_ids(),
    )
    model = seeded(Qwen2VLForConditionalGeneration, config)
    return save(folder, model, parts, model.model.visual.merger.mlp[2])


def qwen2_5_vl(folder: Path) -> Path:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    parts = qwen_parts(8)
    config = Qwen2_5_VLConfig(
        text_config=text(len(parts["tokenizer"]), rope_parameters=rope()),
        vision_config={
            "depth": 4,
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "num_heads": 2,
            "patch_size": 8,
            "window_size": 32,
            "fullatt_block_indexes": [1, 3],
            "tokens_per_second": 2,
        },
        **qwen_ids(),
    )
    model = seeded(Qwen2_5_VLForConditionalGeneration, config)
    return save(folder, model, parts, model.model.visual.merger.mlp[2])


def qwen3_vl(folder: Path) -> Path:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    parts = qwen_parts(8)
    parts["video"]["video_processor_type"] = "Qwen3VLVideoProcessor"
    config = Qwen3VLConfig(
        text_config=text(len(parts["tokenizer"]), head_dim=16, rope_parameters=rope(mrope_interleaved=True)),
        vision_config={
            "depth": 5,
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "num_heads": 2,
            "patch_size": 8,
            "num_position_embeddings": 36,
            "deepstack_visual_indexes": [0, 2, 3],
        },
        **qwen_ids(),
    )
    model = seeded(Qwen3VLForConditionalGeneration, config)
    import torch

    with torch.no_grad():
        for merger in model.model.visual.deepstack_merger_list:
            merger.linear_fc2.weight.mul_(20.0)
    return save(folder, model, parts, model.model.visual.merger.linear_fc2)


def internvl(folder: Path) -> Path:
    from transformers import InternVLConfig, InternVLForConditionalGeneration, Qwen3Config
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    named = {
        "context_image_token": "<IMG_CONTEXT>",
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "video_token": "<video>",
    }
    words = tokenizer(named, image="<IMG_CONTEXT>\n", video="<video>\n")
    config = InternVLConfig(
        vision_config=tower(32, 8, image_size=[32, 32], patch_size=[8, 8], norm_type="rms_norm", use_qk_norm=True),
        text_config=Qwen3Config(**text(len(words), head_dim=16)),
        image_token_id=4,
        image_seq_length=4,
        downsample_ratio=0.5,
    )
    model = seeded(InternVLForConditionalGeneration, config)
    size = {"height": 32, "width": 32}
    pictures = GotOcr2ImageProcessorPil(size=size, min_patches=1, max_patches=6)
    video = {"size": size, "video_processor_type": "InternVLVideoProcessor"}
    parts = {"tokenizer": words, "pictures": pictures, "video": video}
    return save(folder, model, parts, model.model.multi_modal_projector.linear_2)


IDEFICS = {
    "image_token": "<image>",
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
}
ROWS = tuple(f"<row_{r}_col_{c}>" for r in range(1, 4) for c in range(1, 4))


def idefics3(folder: Path) -> Path:
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration, LlamaConfig
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    words = tokenizer(IDEFICS, ROWS, image="<image>")
    config = Idefics3Config(
        vision_config=tower(32, 8, initializer_range=0.2),
        text_config=LlamaConfig(**text(len(words), attention_bias=True)),
        image_token_id=4,
        scale_factor=2,
        pad_token_id=3,
    )
    model = seeded(Idefics3ForConditionalGeneration, config)
    pictures = Idefics3ImageProcessorPil(size={"longest_edge": 96}, max_image_size={"longest_edge": 32})
    return save(
        folder, model, {"tokenizer": words, "pictures": pictures}, model.model.connector.modality_projection.proj
    )


def smolvlm(folder: Path) -> Path:
    from transformers import LlamaConfig, SmolVLMConfig, SmolVLMForConditionalGeneration
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    words = tokenizer(IDEFICS, ROWS, image="<image>")
    config = SmolVLMConfig(
        vision_config=tower(32, 8, initializer_range=0.2),
        text_config=LlamaConfig(**text(len(words))),
        image_token_id=4,
        scale_factor=2,
        pad_token_id=3,
    )
    model = seeded(SmolVLMForConditionalGeneration, config)
    pictures = SmolVLMImageProcessorPil(size={"longest_edge": 96}, max_image_size={"longest_edge": 32})
    return save(
        folder, model, {"tokenizer": words, "pictures": pictures}, model.model.connector.modality_projection.proj
    )


PIXTRAL = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}


def pixtral(folder: Path) -> Path:
    from transformers import LlavaConfig, LlavaForConditionalGeneration, MistralConfig, PixtralVisionConfig
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    words = tokenizer(PIXTRAL, image="[IMG]")
    config = LlavaConfig(
        vision_config=PixtralVisionConfig(**tower(64, 8), initializer_range=0.2),
        text_config=MistralConfig(**text(len(words), sliding_window=None)),
        image_token_index=4,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    model = seeded(LlavaForConditionalGeneration, config)
    pictures = PixtralImageProcessorPil(size={"longest_edge": 64}, patch_size={"height": 8, "width": 8})
    parts = {"tokenizer": words, "pictures": pictures}
    return save(folder, model, parts, model.model.multi_modal_projector.linear_2, 4.0)


def mistral3(folder: Path) -> Path:
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration, MistralConfig, PixtralVisionConfig
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    words = tokenizer(PIXTRAL, image="[IMG]")
    config = Mistral3Config(
        vision_config=PixtralVisionConfig(**tower(96, 8), initializer_range=0.2),
        text_config=MistralConfig(**text(len(words), sliding_window=None)),
        image_token_index=4,
        spatial_merge_size=2,
        vision_feature_layer=-1,
    )
    model = seeded(Mistral3ForConditionalGeneration, config)
    pictures = PixtralImageProcessorPil(size={"longest_edge": 96}, patch_size={"height": 8, "width": 8})
    parts = {"tokenizer": words, "pictures": pictures}
    return save(folder, model, parts, model.model.multi_modal_projector.linear_2, 4.0)


MODELS: dict[str, Callable[[Path], Path]] = {
    f.__name__: f
    for f in (
        llava_next,
        llava_onevision,
        video_llava,
        instructblip,
        qwen2_vl,
        qwen2_5_vl,
        qwen3_vl,
        internvl,
        idefics3,
        smolvlm,
        pixtral,
        mistral3,
    )
}
