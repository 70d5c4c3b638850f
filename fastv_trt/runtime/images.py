"""Pictures from outside: opened with limits, turned upright, made RGB."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from fastv_trt.errors import InputError

MAX_PIXELS = 64 * 1024 * 1024
"""Largest picture that is decoded: 64 megapixels. Headers are read first, so a bomb is never unpacked."""

ImageLike = str | os.PathLike[str] | Image.Image | np.ndarray


def open_image(source: ImageLike) -> Image.Image:
    """A picture as upright 8-bit RGB.

    EXIF rotation is applied; an animation gives its first frame; 16-bit grey is scaled to 8 bits; transparency
    is dropped, as the image processors of transformers do.

    Args:
        source: a path, a PIL image, or a uint8 array [H, W, 3] or [H, W].

    Raises:
        InputError: not a picture, or larger than `MAX_PIXELS`.
    """
    if isinstance(source, np.ndarray):
        return _from_array(source)
    if isinstance(source, Image.Image):
        return _upright_rgb(source, "the given image")
    given: object = source
    if not isinstance(given, (str, os.PathLike)):
        raise InputError(f"expected a path, a PIL image or an array as picture, found {type(given).__name__}")
    path = Path(source)
    if not path.is_file():
        raise InputError(f"expected a picture at {path}, found no file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as picture:
                return _upright_rgb(picture, str(path))
    except UnidentifiedImageError as error:
        raise InputError(f"expected a picture at {path}, found a file of another kind") from error
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise InputError(_too_large(str(path), "more")) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"expected a whole picture at {path}, found a damaged one: {error}") from error


def _upright_rgb(picture: Image.Image, name: str) -> Image.Image:
    width, height = picture.size
    if width * height > MAX_PIXELS:
        raise InputError(_too_large(name, f"{width} x {height}"))
    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I;16") or picture.mode == "I":
        grey = np.asarray(picture).astype(np.int64)
        picture = Image.fromarray((grey >> 8).clip(0, 255).astype(np.uint8))
    return picture.convert("RGB")


def _from_array(pixels: np.ndarray) -> Image.Image:
    fits = pixels.dtype == np.uint8 and (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3))
    if not fits or 0 in pixels.shape:
        raise InputError(
            f"expected a uint8 array [H, W, 3] or [H, W] as picture, found {pixels.dtype} {list(pixels.shape)}"
        )
    return _upright_rgb(Image.fromarray(pixels), "the given array")


def _too_large(name: str, found: str) -> str:
    return f"expected a picture of at most {MAX_PIXELS // 2**20} megapixels, found {found} in {name}; scale it down"
