"""InstructBLIP with Vicuna: 32 query tokens stand before the prompt, and the prompt is also read by the Q-Former."""

from __future__ import annotations

from typing import Any

from fastv_trt.errors import UnsupportedModelError
from fastv_trt.families.base import Arrays, Family, Input, Media, Settings


def settings(config: Any, preprocessing: Any) -> dict[str, Any]:
    if not config.use_decoder_only_language_model:
        raise UnsupportedModelError(
            f"expected a decoder-only language model in InstructBLIP (Vicuna), found {config.text_config.model_type!r}"
        )
    return {"tokens": int(config.num_query_tokens), "axes": {"I": 1}}


def inputs(config: Any) -> tuple[Input, ...]:
    side = int(config.vision_config.image_size)
    return (Input("pixel_values", ("I", 3, side, side)), Input("prompt_ids", ("I", "Q"), "int64"))


def features(model: Any, pixel_values: Any, prompt_ids: Any) -> Any:
    seen = model.vision_model(pixel_values=pixel_values, return_dict=True).last_hidden_state
    queries = model.query_tokens.expand(prompt_ids.shape[0], -1, -1).to(seen.dtype)
    answers = model.qformer(input_ids=prompt_ids, query_embeds=queries, encoder_hidden_states=seen, return_dict=True)
    return model.language_projection(answers.last_hidden_state[:, : queries.shape[1]]).flatten(0, 1)


def image(settings: Settings, outputs: Arrays) -> Media:
    return Media("", (settings["tokens"],), {"pixel_values": outputs["pixel_values"]})


FAMILY = Family(
    name="instructblip",
    architectures=("InstructBlipForConditionalGeneration",),
    special="32 tokens per picture, so little to gain; a second tokenizer reads the prompt for the Q-Former",
    vision_weights=("vision_model.",),
    settings=settings,
    inputs=inputs,
    features=features,
    image=image,
    front=True,
    prompt_tokenizer="qformer_tokenizer",
)
