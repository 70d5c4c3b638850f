"""Videos from outside: a file, or a folder of pictures, becomes a few frames and their times."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastv_trt.errors import InputError, UnavailableError
from fastv_trt.families import Clip
from fastv_trt.runtime.images import MAX_PIXELS, open_image

VideoLike = str | os.PathLike[str] | Clip
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif")
MAX_FRAMES = 1024


def open_video(source: VideoLike, frames: int, multiple: int = 1) -> Clip:
    """Some frames of a video, evenly spread from its first on.

    Args:
        source: a file that FFmpeg reads (needs PyAV), a folder of pictures in the order of their names, which stand
            for one second each, or a clip, which stays as it is.
        frames: how many; all of them if there are fewer.
        multiple: the number is made a multiple of it where there are that many.

    Raises:
        InputError: no video there, a damaged one, or frames of different sizes.
        UnavailableError: a file, and PyAV is not installed.
    """
    if isinstance(source, Clip):
        return _checked(source)
    given: object = source
    if not isinstance(given, (str, os.PathLike)):
        raise InputError(f"expected a path or a Clip as video, found {type(given).__name__}")
    if not 1 <= frames <= MAX_FRAMES:
        raise InputError(f"expected 1 to {MAX_FRAMES} frames of a video, found {frames}")
    path = Path(source)
    if path.is_dir():
        pictures = sorted(p for p in path.iterdir() if p.suffix.lower() in PICTURES)
        if not pictures:
            raise InputError(f"expected a video file or a folder of pictures at {path}, found no picture in it")
        chosen = sample(len(pictures), frames, multiple)
        return _checked(Clip([np.asarray(open_image(pictures[i])) for i in chosen], [float(i) for i in chosen]))
    if not path.is_file():
        raise InputError(f"expected a video file or a folder of pictures at {path}, found none")
    return _checked(_decode(path, frames, multiple))


def sample(total: int, frames: int, multiple: int = 1) -> list[int]:
    """Indices of the frames to take: i * total / n, rounded down, for n frames."""
    count = min(total, frames)
    if count >= multiple:
        count -= count % multiple
    return [i * total // count for i in range(count)]


def _decode(path: Path, frames: int, multiple: int) -> Clip:
    try:
        import av
    except ImportError as error:
        raise UnavailableError(
            f"expected PyAV to read {path}, found none; install fastv-trt with the video extra, or give a folder of "
            "pictures"
        ) from error
    try:
        total = sum(1 for _ in _frames(av, path))
        if not total:
            raise InputError(f"expected a video with frames at {path}, found none in it")
        chosen = set(sample(total, frames, multiple))
        kept = [(frame, i) for i, frame in enumerate(_frames(av, path)) if i in chosen]
        if any(frame.width * frame.height > MAX_PIXELS for frame, _ in kept):
            raise InputError(f"expected frames of at most {MAX_PIXELS // 2**20} megapixels, found more in {path}")
        pixels = [_upright(frame) for frame, _ in kept]
        seconds = [float(frame.time if frame.time is not None else i) for frame, i in kept]
    except (av.error.FFmpegError, OSError, ValueError, IndexError) as error:
        raise InputError(f"expected a video that FFmpeg reads at {path}, found: {error}") from error
    return Clip(pixels, seconds)


def _frames(av: Any, path: Path) -> Iterator[Any]:
    with av.open(str(path)) as container:
        yield from container.decode(container.streams.video[0])


def _upright(frame: Any) -> NDArray[np.uint8]:
    pixels: NDArray[np.uint8] = frame.to_ndarray(format="rgb24")
    return np.ascontiguousarray(np.rot90(pixels, int(getattr(frame, "rotation", 0)) // 90))


def _checked(clip: Clip) -> Clip:
    if not clip.frames or len(clip.frames) != len(clip.seconds):
        raise InputError(
            f"expected a video with frames and a time for each, found {len(clip.frames)} and {len(clip.seconds)}"
        )
    shapes = {(frame.shape, str(frame.dtype)) for frame in clip.frames}
    shape, dtype = next(iter(shapes))
    if len(shapes) > 1 or dtype != "uint8" or len(shape) != 3 or shape[2] != 3 or 0 in shape:
        raise InputError(f"expected frames of one size, uint8 [H, W, 3], found {sorted(shapes)[:2]}")
    return clip
