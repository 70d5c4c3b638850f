from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastv_trt.bundle import Bundle
from fastv_trt.cli.run import run
from fastv_trt.errors import InputError
from fastv_trt.runtime import Runtime
from fastv_trt.runtime.request_file import read_request, write_request
from tests.conftest import picture


def test_dumped_inputs_are_what_the_graphs_would_be_given(bundle: Bundle, runtime: Runtime, tmp_path: Path) -> None:
    pictures = [tmp_path / "a.png", tmp_path / "b.png"]
    for seed, path in enumerate(pictures):
        Image.fromarray(picture(seed)).save(path)
    run(bundle.path, prompt="what?", image=pictures, dump_inputs=tmp_path / "request")
    found, expected = read_request(tmp_path / "request"), runtime.request("what?", pictures)
    np.testing.assert_array_equal(found.input_ids, expected.input_ids)
    np.testing.assert_array_equal(found.vision_inputs["pixel_values"], expected.vision_inputs["pixel_values"])
    assert found.image_sizes == expected.image_sizes == (25, 25)


def test_files_of_another_kind_are_refused(runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"something else")
    with pytest.raises(InputError, match="as run --dump-inputs writes them"):
        read_request(tmp_path / "other")
    with pytest.raises(InputError, match="can be written"):
        write_request(runtime.request("what?"), tmp_path / "absent" / "file")
