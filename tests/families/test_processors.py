"""Ids and pixels from the bundle's own road, without torch, against transformers' processor of the family.

Those with a video processor need torchvision; where it is not installed (its wheel does not import beside a CPU build
of torch unless the schemas of two operators are defined first) their tests are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastv_trt.bundle import Bundle
from fastv_trt.runtime.processing import Processor
from tests.conftest import picture
from tests.families.conftest import TORCHVISION
from tests.families.models import MODELS

pytestmark = pytest.mark.families
PLAIN = ("llava_next", "idefics3", "instructblip")


def real_processor(name: str, folder: Path) -> Any:
    """transformers' processor of a family, from the checkpoint's tokenizer and image processor."""
    import transformers
    from transformers import AutoImageProcessor, AutoTokenizer

    words = AutoTokenizer.from_pretrained(folder)
    pictures = AutoImageProcessor.from_pretrained(folder, backend="pil")
    common = {"image_processor": pictures, "tokenizer": words}
    if name == "llava_next":
        more = {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
        return transformers.LlavaNextProcessor(**common, **more)
    if name == "idefics3":
        return transformers.Idefics3Processor(**common, image_seq_len=4)
    if name in ("pixtral", "mistral3"):
        return transformers.PixtralProcessor(**common, patch_size=8, spatial_merge_size=1 + (name == "mistral3"))
    if name == "instructblip":
        second = AutoTokenizer.from_pretrained(folder / "qformer_tokenizer")
        found = transformers.InstructBlipProcessor(**common, qformer_tokenizer=second, num_query_tokens=8)
        found.image_token = transformers.AddedToken("<image>", special=True)  # a plain str fails in its __call__
        return found
    video = {
        "llava_onevision": transformers.LlavaOnevisionVideoProcessor,
        "video_llava": transformers.VideoLlavaVideoProcessor,
        "internvl": transformers.InternVLVideoProcessor,
        "smolvlm": transformers.SmolVLMVideoProcessor,
        "qwen3_vl": transformers.Qwen3VLVideoProcessor,
    }.get(name, transformers.Qwen2VLVideoProcessor)()
    common["video_processor"] = video
    if name == "llava_onevision":
        return transformers.LlavaOnevisionProcessor(
            **common, num_image_tokens=25, vision_feature_select_strategy="full", vision_aspect_ratio="anyres_max_4"
        )
    if name == "video_llava":
        return transformers.VideoLlavaProcessor(**common, patch_size=8)
    if name == "internvl":
        return transformers.InternVLProcessor(**common, image_seq_length=4)
    if name == "smolvlm":
        return transformers.SmolVLMProcessor(**common, image_seq_len=4)
    kind = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}[name]
    return getattr(transformers, f"{kind}Processor")(**common)


@pytest.mark.parametrize("size", [(40, 40), (41, 39), (30, 90), (170, 20), (9, 11), (200, 190)])
@pytest.mark.parametrize("name", MODELS)
def test_ids_and_pixels_are_those_of_transformers(
    family_bundle: Callable[..., Bundle], family_checkpoint: Callable[[str], Path], name: str, size: tuple[int, int]
) -> None:
    if name not in PLAIN and TORCHVISION is None:
        pytest.skip("torchvision does not import here")
    if name == "smolvlm":
        pytest.importorskip("num2words")
    processor = Processor.of(family_bundle(name))
    shown = picture(7, *size)
    text = "what is it?"
    if processor.has_chat_template:
        text = processor.render([processor.user(text, 1)])
    from PIL import Image

    real = real_processor(name, family_checkpoint(name))
    options = {} if processor.family.front else {"add_special_tokens": False}
    wanted = real(images=[Image.fromarray(shown)], text=text, return_tensors="np", **options)
    request = processor.request(text, [shown])
    assert request.input_ids.tolist() == np.asarray(wanted["input_ids"])[0].tolist()
    key = "pixel_values_images" if "pixel_values_images" in wanted else "pixel_values"
    pixels = processor.outputs([shown])[0]["pixel_values"]
    assert np.array_equal(pixels, np.asarray(wanted[key]))
