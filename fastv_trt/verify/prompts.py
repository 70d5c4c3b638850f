"""Prompts to verify with: a question, and pictures that nobody has to bring."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastv_trt.families import Clip
from fastv_trt.runtime import Request
from fastv_trt.runtime.images import ImageLike
from fastv_trt.runtime.processing import Processor


def noise(seed: int, side: int = 160) -> NDArray[np.uint8]:
    """A seeded picture with both smooth and busy parts, uint8 [side, side, 3]."""
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(0, 255, (side // 20, side // 20, 3)).repeat(20, axis=0).repeat(20, axis=1)
    return (coarse + rng.normal(0, 20, coarse.shape)).clip(0, 255).astype(np.uint8)


def request_of(processor: Processor, prompt: str, images: Sequence[ImageLike], videos: Sequence[Clip] = ()) -> Request:
    """A request of a question about pictures and clips, through the chat template if there is one."""
    if processor.has_chat_template:
        text = processor.render([processor.user(prompt, len(images), len(videos))])
    elif processor.family.front:
        text = prompt
    else:
        text = f"{processor.image_token}\n" * len(images) + f"{processor.video_token}\n" * len(videos) + prompt
    return processor.request(text, images, videos)
