"""Checkpoints and bundles of the families, made once each, and the record that the README's table is made from.

Set FASTV_FAMILIES_JSON to a file to have what was verified written there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from fastv_trt.bundle import Bundle
from tests.families.models import MODELS


def _torchvision() -> Any:
    """torchvision's library object, or None. Only processors with a video processor want it, to be compared with.

    Its wheel does not import beside a CPU build of torch unless the schemas of two operators are defined, and
    transformers imports it if it is there: so this comes first.
    """
    if util.find_spec("torchvision") is None:
        return None
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    if torch.version.cuda is None:
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


TORCHVISION = _torchvision()


@pytest.fixture(scope="session")
def family_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = MODELS[name](tmp_path_factory.mktemp(name) / "checkpoint")
        return made[name]

    return get


@pytest.fixture(scope="session")
def family_bundle(
    family_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Bundle]:
    from fastv_trt.export import export

    made: dict[tuple[str, int, str], Bundle] = {}

    def get(name: str, k: int = 2, dtype: str = "fp32") -> Bundle:
        key = (name, k, dtype)
        if key not in made:
            folder = tmp_path_factory.mktemp("bundles") / f"{name}-{k}"
            rankings = None if dtype == "fp32" else ["last-query"]
            made[key] = export(family_checkpoint(name), folder, k=k, dtype=dtype, rankings=rankings).bundle
        return made[key]

    return get


@pytest.fixture(scope="session")
def record() -> Iterator[Callable[[str, str, Any], None]]:
    """Keeps (model, what, value); the worst of several numbers, and False over True."""
    found: dict[str, dict[str, Any]] = {}

    def keep(model: str, what: str, value: Any) -> None:
        row = found.setdefault(model, {})
        if isinstance(value, bool):
            row[what] = value and row.get(what, True)
        elif isinstance(value, float):
            row[what] = max(value, row.get(what, 0.0))
        else:
            row[what] = value

    yield keep
    path = os.environ.get("FASTV_FAMILIES_JSON")
    if path:
        Path(path).write_text(json.dumps(found, indent=2, sort_keys=True) + "\n", encoding="utf-8")
