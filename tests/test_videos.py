"""Videos become a few frames and their times; what is none is refused in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fastv_trt.errors import InputError
from fastv_trt.families import Clip
from fastv_trt.runtime.videos import open_video, sample


@given(total=st.integers(1, 500), frames=st.integers(1, 64), multiple=st.integers(1, 4))
def test_frames_are_spread_and_counted(total: int, frames: int, multiple: int) -> None:
    chosen = sample(total, frames, multiple)
    assert chosen == sorted(set(chosen)) and chosen[0] == 0 and chosen[-1] < total
    assert len(chosen) <= frames
    assert len(chosen) % multiple == 0 or len(chosen) == min(total, frames) < multiple


def test_a_folder_of_pictures_in_the_order_of_names(tmp_path: Path) -> None:
    for index in (3, 1, 2, 0):
        Image.new("RGB", (8, 6), (index, 0, 0)).save(tmp_path / f"{index}.png")
    (tmp_path / "notes.txt").write_text("no picture")
    clip = open_video(tmp_path, 2)
    assert [int(frame[0, 0, 0]) for frame in clip.frames] == [0, 2]
    assert clip.seconds == [0.0, 2.0]


def test_a_video_file_gives_its_frames_and_their_times(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv420p"
        for index in range(10):
            pixels = np.full((16, 32, 3), 20 * index, dtype=np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    clip = open_video(tmp_path / "a.mp4", 5)
    assert [frame.shape for frame in clip.frames] == [(16, 32, 3)] * 5
    assert [abs(int(frame.mean()) - 40 * i) <= 6 for i, frame in enumerate(clip.frames)] == [True] * 5
    assert np.allclose(clip.seconds, [0.0, 0.4, 0.8, 1.2, 1.6])


def test_what_is_no_video(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found none"):
        open_video(tmp_path / "none.mp4", 8)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match="no picture in it"):
        open_video(empty, 8)
    Image.new("RGB", (4, 4)).save(empty / "a.png")
    Image.new("RGB", (4, 5)).save(empty / "b.png")
    with pytest.raises(InputError, match="frames of one size"):
        open_video(empty, 8)
    with pytest.raises(InputError, match="1 to 1024 frames"):
        open_video(empty, 0)
    with pytest.raises(InputError, match="a path or a Clip"):
        open_video(3, 8)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a time for each"):
        open_video(Clip([np.zeros((2, 2, 3), np.uint8)], []), 8)


@pytest.mark.parametrize("content", [b"", b"hello", bytes(range(256)) * 8])
def test_a_file_that_ffmpeg_does_not_read(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("av")
    (tmp_path / "a.mp4").write_bytes(content)
    with pytest.raises(InputError, match="a video that FFmpeg reads"):
        open_video(tmp_path / "a.mp4", 8)
