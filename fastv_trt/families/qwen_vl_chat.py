"""Qwen-VL-Chat: a ViT, and a resampler that makes 256 tokens of every picture; a Qwen2 decoder by other names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastv_trt.errors import UnsupportedModelError
from fastv_trt.families.base import Arrays, Family, Input, Media, Settings
from fastv_trt.families.preprocessing import Preprocessing

TOKENS = 256
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP's
TEMPLATE = (
    "{% set count = namespace(pictures=0) %}"
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}"
    "{% endif %}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{% set count.pictures = count.pictures + 1 %}"
    "{{ 'Picture ' ~ count.pictures ~ ': <img><imgpad></img>\n' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def preprocessing(folder: Path, config: Any) -> Preprocessing:
    """Tokenizer and image processor, which its checkpoints have as code: made from qwen.tiktoken and config.json.

    Raises:
        InputError: no such file, or it does not fit the config.
    """
    from transformers import CLIPImageProcessorPil

    from fastv_trt.families import qwen_tiktoken

    config.check()
    side = int(config.visual["image_size"])
    pictures = CLIPImageProcessorPil(
        size={"height": side, "width": side}, do_center_crop=False, resample=3, image_mean=MEAN, image_std=STD
    )
    tokenizer = qwen_tiktoken.load(folder / "qwen.tiktoken", int(config.visual["image_start_id"]))
    tokenizer.chat_template = TEMPLATE
    return Preprocessing(tokenizer, pictures, None, {})


def settings(config: Any, preprocessing: Any) -> dict[str, Any]:
    if int(config.visual.get("n_queries", TOKENS)) != TOKENS:
        raise UnsupportedModelError(f"expected {TOKENS} queries in Qwen-VL's resampler, found another number")
    return {"axes": {"I": 1}}


def inputs(config: Any) -> tuple[Input, ...]:
    side = int(config.visual["image_size"])
    return (Input("pixel_values", ("I", 3, side, side)),)


def features(model: Any, pixel_values: Any) -> Any:
    return model.visual(pixel_values).flatten(0, 1)


def image(settings: Settings, outputs: Arrays) -> Media:
    return Media(settings["image"] * TOKENS, (TOKENS,), {"pixel_values": outputs["pixel_values"]})


FAMILY = Family(
    name="qwen_vl_chat",
    architectures=("QWenLMHeadModel",),
    special="256 tokens per picture between <img> and </img>; imported by name, none of its own code runs; 2048 tokens",
    vision_weights=("transformer.visual.",),
    settings=settings,
    inputs=inputs,
    features=features,
    image=image,
    preprocessing=preprocessing,
    stops=("<|im_end|>",),
)
