"""What the Qwen-VL families share: patches of any picture or clip in one row, tokens of 2 x 2 of them, M-RoPE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastv_trt.families import frames, packed
from fastv_trt.families.base import Arrays, Clip, Grid, Input, Media, Numbers, Settings

WEIGHTS = ("model.visual.", "visual.")


def settings(config: Any, preprocessing: Any) -> dict[str, Any]:
    vision = config.vision_config
    return {
        "patch": int(vision.patch_size),
        "merge": int(vision.spatial_merge_size),
        "times": int(vision.temporal_patch_size),
        "clip": frames.settings(preprocessing, int(vision.patch_size)),
        "axes": {},
    }


def inputs(config: Any) -> tuple[Input, ...]:
    vision, each = config.vision_config, int(config.vision_config.spatial_merge_size) ** 2
    channels = int(getattr(vision, "in_channels", 3))
    return (
        Input("patches", ("M", each, int(channels * vision.temporal_patch_size * vision.patch_size**2))),
        Input("places", ("M", each, 2), "int64"),
        Input("segments", ("M",), "int64"),
    )


def embed(visual: Any, patches: Any) -> Any:
    """Patches [M,u,p] -> [P,D]; the convolution sees each patch once, so it is a linear layer."""
    from torch.nn import functional

    projection = visual.patch_embed.proj
    return functional.linear(patches.flatten(0, 1), projection.weight.flatten(1), projection.bias)


def block(layer: Any, hidden: Any, mask: Any, rotary: Any) -> Any:
    """One layer of the tower over packed patches [P,D]."""
    from fastv_trt.families import towers

    hidden = hidden + towers.packed_attention(layer.attn, layer.norm1(hidden), mask, rotary)
    return hidden + layer.mlp(layer.norm2(hidden))


def arrays(settings: Settings, patches: NDArray[Any], grid: Grid) -> dict[str, NDArray[Any] | Numbers]:
    """The vision graph's inputs for a picture or clip of a grid in patches."""
    times, rows, columns = grid
    merge = settings["merge"]
    each = rows * columns // merge**2
    return {
        "patches": patches.reshape(times * each, merge**2, -1),
        "places": packed.places(times, rows, columns, merge),
        "segments": Numbers(packed.segments(times, each), times),
    }


def in_tokens(settings: Settings, grid: Grid) -> Grid:
    return grid[0], grid[1] // settings["merge"], grid[2] // settings["merge"]


def image_of(inputs_of: Callable[[Settings, NDArray[Any], Grid], Any]) -> Callable[[Settings, Arrays], Media]:
    """`Family.image` of a family whose graph takes what `inputs_of` gives."""

    def image(settings: Settings, outputs: Arrays) -> Media:
        times, rows, columns = (int(size) for size in outputs["image_grid_thw"][0])
        grid = in_tokens(settings, (times, rows, columns))
        tokens = grid[0] * grid[1] * grid[2]
        media = inputs_of(settings, outputs["pixel_values"], (times, rows, columns))
        return Media(settings["image"] * tokens, (tokens,), media, (grid,))

    return image


def clip_of(
    inputs_of: Callable[[Settings, NDArray[Any], Grid], Any], per_second: Callable[[Settings], float | None]
) -> Callable[[Settings, Arrays], Media]:
    """`Video.media` of a family with one run of tokens per clip.

    Args:
        per_second: settings -> positions that a second is long; None counts times.
    """

    def clip(settings: Settings, outputs: Arrays) -> Media:
        times, rows, columns = (int(size) for size in outputs["video_grid_thw"][0])
        grid = in_tokens(settings, (times, rows, columns))
        each, rate = grid[1] * grid[2], per_second(settings)
        media = inputs_of(settings, outputs["pixel_values_videos"], (times, rows, columns))
        interval = 1.0 if rate is None else rate * float(outputs["second_per_grid_ts"][0])
        return Media(settings["video"] * (times * each), (each,) * times, media, (grid,), interval)

    return clip


def patched(settings: Settings, clip: Clip, size: tuple[int, int]) -> Arrays:
    """Frames of `size` as a video processor gives them: a patch holds `times` frames."""
    pixels = frames.pixels(settings["clip"], clip, size)
    times, patch, merge = settings["times"], settings["patch"], settings["merge"]
    pixels = np.concatenate((pixels, *[pixels[-1:]] * (-len(pixels) % times)))  # the last frame fills up
    grid = len(pixels) // times, size[0] // patch, size[1] // patch
    blocks = pixels.reshape(
        grid[0], times, -1, grid[1] // merge, merge, patch, grid[2] // merge, merge, patch
    ).transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)
    spacing = float(np.mean(np.diff(clip.seconds))) if len(clip.seconds) > 1 else 1.0
    seconds = [*clip.seconds, *[clip.seconds[-1]] * (-len(clip.seconds) % times)]
    return {
        "pixel_values_videos": blocks.reshape(grid[0] * grid[1] * grid[2], -1),
        "video_grid_thw": np.array([grid]),
        "second_per_grid_ts": np.array([times * spacing]),
        "seconds": (np.array(seconds[::times]) + np.array(seconds[times - 1 :: times])) / 2,
    }


def per_frame(settings: Settings, clip: Clip) -> Arrays:
    """A clip whose pixels are limited frame by frame, as Qwen2-VL and Qwen2.5-VL do."""
    height, width = clip.frames[0].shape[:2]
    limits = settings["clip"]["size"]
    factor = settings["patch"] * settings["merge"]
    size = frames.smart_size(height, width, factor, limits["shortest_edge"], limits["longest_edge"])
    return patched(settings, clip, size)
