"""Pictures of every kind become upright RGB, and what is not a picture is refused."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastv_trt.errors import InputError
from fastv_trt.runtime.images import open_image


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P", "1", "CMYK", "I;16", "I", "F"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    base = Image.fromarray((np.arange(48).reshape(6, 8) * 5).astype(np.uint8))
    if mode in ("I;16", "I"):
        picture = Image.fromarray(
            (np.arange(48).reshape(6, 8) * 1300).astype(np.uint16 if mode == "I;16" else np.int32)
        )
    else:
        picture = base.convert(mode)
    file = tmp_path / ("a.tif" if mode in ("CMYK", "F", "I", "I;16") else "a.png")
    picture.save(file)
    opened = open_image(file)
    assert (opened.mode, opened.size) == ("RGB", (8, 6))
    if mode in ("I;16", "I"):
        assert np.asarray(opened)[..., 0].tolist() == (np.arange(48).reshape(6, 8) * 1300 >> 8).tolist()


def test_exif_rotation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter clockwise
    Image.new("RGB", (8, 4)).save(tmp_path / "a.jpg", exif=exif)
    assert open_image(tmp_path / "a.jpg").size == (4, 8)


def test_an_animation_gives_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (5, 5), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert np.asarray(open_image(tmp_path / "a.gif"))[0, 0].tolist() == [255, 0, 0]


def test_arrays_and_pil_images_are_taken_as_they_are() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    assert np.array_equal(np.asarray(open_image(pixels)), pixels)
    assert np.array_equal(np.asarray(open_image(Image.fromarray(pixels))), pixels)
    assert open_image(pixels[..., 0]).mode == "RGB"


@pytest.mark.parametrize(
    "array", [np.zeros((4, 4), np.float32), np.zeros((4, 4, 4), np.uint8), np.zeros((0, 4), np.uint8)]
)
def test_other_arrays_are_refused(array: np.ndarray) -> None:
    with pytest.raises(InputError, match="uint8 array"):
        open_image(array)


@pytest.mark.parametrize("content", [b"", b"hello", b"%PDF-1.7", b"\x89PNG\r\n\x1a\n"])
def test_what_is_not_a_picture(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(InputError, match=r"expected a (whole )?picture"):
        open_image(tmp_path / "a.png")


def test_a_truncated_picture(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.jpg")
    (tmp_path / "b.jpg").write_bytes((tmp_path / "a.jpg").read_bytes()[:1500])
    with pytest.raises(InputError, match="damaged"):
        open_image(tmp_path / "b.jpg")


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.png", tmp_path):
        with pytest.raises(InputError, match="found no file"):
            open_image(path)


@pytest.mark.parametrize("side", [9000, 20000, 100000])
def test_an_enormous_picture_is_refused_from_its_header(tmp_path: Path, side: int) -> None:
    """A PNG that says it is enormous, and holds almost nothing: a decompression bomb."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(png)
    with pytest.raises(InputError, match="at most 64 megapixels"):
        open_image(tmp_path / "a.png")
