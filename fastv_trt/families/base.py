"""What a family of vision-language models has to say about itself. Everything else is shared.

The exporter calls `settings`, `inputs` and `features`; the runtime, which has no torch, calls `image` and
`video` with what the exporter wrote down. So no file of a family imports torch or transformers at its top.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Settings = Mapping[str, Any]
"""What the host has to know about one checkpoint: JSON values, kept in the bundle."""

Arrays = Mapping[str, NDArray[Any]]
"""Outputs of an image processor, by name."""

Grid = tuple[int, int, int]
"""Times, rows and columns of a run of image tokens."""


@dataclass(frozen=True)
class Input:
    """One input of a vision graph.

    Attributes:
        name: of the input.
        axes: a number is static, a name is dynamic. Equal names are equal sizes.
        dtype: "float", which is the bundle's, or "int64".
    """

    name: str
    axes: tuple[int | str, ...]
    dtype: Literal["float", "int64"] = "float"


@dataclass(frozen=True)
class Numbers:
    """An input that counts something within one picture, such as the row of a feature.

    When pictures are joined, numbers from 0 on move up by the `count` of every picture before, and negative ones
    down by its `below`.
    """

    values: NDArray[np.int64]
    count: int
    below: int = 0


@dataclass(frozen=True)
class Media:
    """One picture or clip, ready for a prompt.

    Attributes:
        text: what stands in the place of its placeholder.
        sizes: image tokens in `text`; of a clip, one number per frame.
        inputs: of the vision graph; axis 0 is joined over all pictures of a prompt.
        grids: for M-RoPE, the shape of every run of image tokens in `text`.
        interval: for M-RoPE, positions between two times of a grid.
    """

    text: str
    sizes: tuple[int, ...]
    inputs: Mapping[str, NDArray[Any] | Numbers]
    grids: tuple[Grid, ...] = ()
    interval: float = 1.0


@dataclass(frozen=True)
class Clip:
    """Frames of a video.

    Attributes:
        frames: pictures of one size, uint8 [H, W, 3], in order.
        seconds: the time of each.
    """

    frames: Sequence[NDArray[np.uint8]]
    seconds: Sequence[float]


@dataclass(frozen=True)
class Video:
    """How a family reads a clip.

    Attributes:
        outputs: settings and clip -> what transformers' video processor would give, under the same names.
        media: settings and those outputs -> the clip in a prompt.
        frames: how many frames are taken unless told otherwise.
        multiple: the number of frames is a multiple of it.
    """

    outputs: Callable[[Settings, Clip], Arrays]
    media: Callable[[Settings, Arrays], Media]
    frames: int = 8
    multiple: int = 1


@dataclass(frozen=True)
class Family:
    """One family of models.

    Attributes:
        name: short name, written into the bundle.
        architectures: class names as they stand in config.json.
        special: what is special about it, in a sentence.
        vision_weights: prefixes, one of which a weight of the vision part must start with.
        settings: config and preprocessing -> what `image` and `video` need to know, as JSON. "axes" in it is the
            largest size of each dynamic axis of the vision graph for one picture; "options", if there, are keyword
            arguments of the image processor.
        inputs: config -> the vision graph's inputs.
        features: model and those inputs -> image_features [M,d], or a pair with DeepStack's features [F,M,d].
        image: settings and the image processor's outputs for one picture -> the picture in a prompt.
        video: how it reads clips; None if it does not.
        towers: types of vision tower (vision_config.model_type) that it is right for; empty for any.
        positions: "1d", or "mrope" for three rows of position ids.
        deepstack: config -> number of decoder layers after which DeepStack adds features.
        together: whether the image processor is given all pictures of a prompt at once.
        front: whether image tokens stand before the prompt instead of in the place of a placeholder.
        prepare: called once with the model, before `features` is traced.
        prompt_tokenizer: folder of a second tokenizer, whose ids of the prompt are the input `prompt_ids`.
        preprocessing: folder and config -> `Preprocessing`, for checkpoints that have no files transformers can read.
        stops: tokens that end an answer, beside those that the checkpoint's own files name.
    """

    name: str
    architectures: tuple[str, ...]
    special: str
    vision_weights: tuple[str, ...]
    settings: Callable[[Any, Any], dict[str, Any]]
    inputs: Callable[[Any], tuple[Input, ...]]
    features: Callable[..., Any]
    image: Callable[[Settings, Arrays], Media]
    video: Video | None = None
    towers: tuple[str, ...] = ()
    positions: Literal["1d", "mrope"] = "1d"
    deepstack: Callable[[Any], int] = lambda config: 0
    together: bool = False
    front: bool = False
    prepare: Callable[[Any], None] = lambda model: None
    prompt_tokenizer: str | None = None
    preprocessing: Callable[[Any, Any], Any] | None = None
    stops: tuple[str, ...] = ()


def join(media: Sequence[Media]) -> dict[str, NDArray[Any]]:
    """The vision graph's inputs for all pictures of a prompt, in its order.

    An input that no picture fills gets one blank row: towers cannot run on none, and no index names what it becomes.
    """
    joined: dict[str, NDArray[Any]] = {}
    for name in media[0].inputs:
        pieces: list[NDArray[Any]] = []
        count = below = 0
        for item in (m.inputs[name] for m in media):
            if isinstance(item, Numbers):
                pieces.append(np.where(item.values >= 0, item.values + count, item.values - below))
                count, below = count + item.count, below + item.below
            else:
                pieces.append(item)
        whole = np.concatenate(pieces)
        joined[name] = whole if len(whole) else np.zeros((1, *whole.shape[1:]), dtype=whole.dtype)
    return joined


def mrope(length: int, image_positions: NDArray[np.int64], media: Sequence[Media]) -> NDArray[np.int64]:
    """Position ids of a prompt under M-RoPE: [3, N] of time, row and column, from 0 on.

    Text counts on in all three rows. A run of image tokens starts where the text stands and counts its times, rows
    and columns from there; the text after it goes on behind the longer side of the picture.

    Source: Qwen2-VL (arXiv 2409.12191, section 2.1); Qwen2.5-VL for times in seconds.

    Args:
        length: N.
        image_positions: where the image tokens stand, ascending, [M].
        media: the pictures and clips, in order; their grids hold M tokens.
    """
    positions = np.empty((3, length), dtype=np.int64)
    cursor = current = used = 0
    for item in media:
        for times, rows, columns in item.grids:
            start, size = int(image_positions[used]), times * rows * columns
            text = start - cursor
            positions[:, cursor:start] = current + np.arange(text)
            current += text
            time = np.floor(np.arange(times) * item.interval).astype(np.int64)
            grid = np.meshgrid(time, np.arange(rows), np.arange(columns), indexing="ij")
            positions[:, start : start + size] = current + np.stack(grid).reshape(3, -1)
            current += max(rows, columns)
            cursor, used = start + size, used + size
    positions[:, cursor:] = current + np.arange(length - cursor)
    return positions
