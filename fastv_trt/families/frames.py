"""Frames of a clip -> pixels, in place of transformers' video processors, which need torch and torchvision.

PIL resizes where those use torchvision, so pixels may differ from theirs in the last of 256 steps.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fastv_trt.families.base import Arrays, Clip, Settings


def settings(preprocessing: Any, side: int) -> dict[str, Any]:
    """How a family's frames are prepared: its video processor's values, or else its image processor's."""
    values = dict(preprocessing.video)
    pictures = preprocessing.image_processor

    def value(name: str, default: Any) -> Any:
        found = values.get(name)
        found = getattr(pictures, name, None) if found is None else found
        return default if found is None else found

    size = value("size", {"height": side, "width": side})
    size = {key: int(size[key]) for key in ("height", "width", "shortest_edge", "longest_edge") if size.get(key)}
    if "min_pixels" in values or "max_pixels" in values:  # an older form
        size = {"shortest_edge": int(values["min_pixels"]), "longest_edge": int(values["max_pixels"])}
    return {
        "size": size,
        "side": side,
        "crop": bool(value("do_center_crop", False)),
        "resample": int(value("resample", 3)),
        "mean": [float(x) for x in value("image_mean", [0.5] * 3)],
        "std": [float(x) for x in value("image_std", [0.5] * 3)],
        "scale": float(value("rescale_factor", 1 / 255)),
    }


def pixels(how: Settings, clip: Clip, size: tuple[int, int]) -> NDArray[np.float32]:
    """Frames resized to `size` (height, width) and normalised: [T,3,H,W]."""
    method = Image.Resampling(how["resample"])
    resized = [np.asarray(Image.fromarray(f).resize((size[1], size[0]), method)) for f in clip.frames]
    values = np.stack(resized).astype(np.float32) * np.float32(how["scale"])
    mean, std = (np.asarray(how[name], dtype=np.float32) for name in ("mean", "std"))
    return np.ascontiguousarray(((values - mean) / std).transpose(0, 3, 1, 2))


def tiles(settings: Settings, clip: Clip) -> Arrays:
    """One tile per frame: pixel_values_videos [1,T,3,H,W], resized to a square, or cropped to one if so set."""
    how, (height, width) = settings["clip"], clip.frames[0].shape[:2]
    side = how["side"]
    if not how["crop"]:
        return {"pixel_values_videos": pixels(how, clip, (side, side))[None]}
    edge = how["size"].get("shortest_edge", side)
    scale = edge / min(height, width)
    size = (edge, int(width * scale)) if height <= width else (int(height * scale), edge)
    whole = pixels(how, clip, size)
    top, left = (size[0] - side) // 2, (size[1] - side) // 2
    return {"pixel_values_videos": whole[None, :, :, top : top + side, left : left + side]}


def smart_size(height: int, width: int, factor: int, least: int, most: int) -> tuple[int, int]:
    """The size nearest to a picture's whose sides are multiples of `factor` and whose pixels are in least..most.

    Source: Qwen2-VL's `smart_resize`.
    """
    size = round(height / factor) * factor, round(width / factor) * factor
    if size[0] * size[1] > most:
        shrink = math.sqrt(height * width / most)
        down = [max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width)]
        return down[0], down[1]
    if size[0] * size[1] < least:
        grow = math.sqrt(least / (height * width))
        up = [math.ceil(side * grow / factor) * factor for side in (height, width)]
        return up[0], up[1]
    return size
