"""Who imports whom: rooms point one way, and light commands stay light. Each check runs in a new process."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import fastv_trt
from fastv_trt.bundle import Bundle

PACKAGE = Path(fastv_trt.__file__).parent
HEAVY = ("torch", "transformers", "onnxruntime", "onnx", "matplotlib", "sklearn", "tensorrt", "tensorrt_rtx")


def loaded_after(code: str) -> set[str]:
    script = f"import sys; {code}; print(' '.join(m.partition('.')[0] for m in sys.modules))"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


def test_the_package_alone_loads_nothing_heavy() -> None:
    assert not loaded_after("import fastv_trt") & {*HEAVY, "numpy", "pydantic"}


def test_the_policy_and_the_bundle_need_only_numpy_and_pydantic() -> None:
    assert not loaded_after("import fastv_trt.pruning, fastv_trt.bundle, fastv_trt.cost") & set(HEAVY)


def test_the_runtime_imports_neither_torch_nor_transformers() -> None:
    assert not loaded_after("import fastv_trt.runtime, fastv_trt.runtime.ort") & {"torch", "transformers"}


def test_help_loads_nothing_heavy() -> None:
    assert not loaded_after("import fastv_trt.cli") & set(HEAVY)


def test_calibration_loads_torch_only_to_cut_at_another_k() -> None:
    assert not loaded_after("import fastv_trt.calibration.recommend, fastv_trt.calibration.sweep") & {
        "torch",
        "transformers",
        "onnx",
        "matplotlib",
    }


def test_ids_and_pixels_in_ids_out_needs_no_transformers(bundle: Bundle) -> None:
    code = f"""
import numpy as np, fastv_trt.runtime as r
from fastv_trt.pruning import Pruning
from fastv_trt.runtime.generation import Generation
chain = r.Runtime.load({str(bundle.path)!r}).chain
request = r.Request(np.array([1] + [4] * 25 + [9]), {{'pixel_values': np.zeros((1, 3, 40, 40), np.float32)}}, (25,))
done = Generation.start(chain, [request], Pruning(ratio=0.5), r.Limits(3, stop=()), r.Sampling()).finish()
assert len(done.tokens[0]) == 3
"""
    assert not loaded_after(f"exec({code!r})") & {"torch", "transformers", "tokenizers"}


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site folder that links to everything installed here but torch and what only the export extra needs."""
    site = tmp_path_factory.mktemp("site")
    absent = ("torch", "onnx", "functorch", "sklearn", "scikit", "triton", "sympy", "ml_dtypes")
    here = Path(sysconfig.get_paths()["purelib"])
    for entry in here.iterdir():
        name = entry.name.lower()
        if name.startswith(absent) and not name.startswith("onnxruntime"):
            continue
        if not name.startswith(("fastv", "__editable__", "_fastv")) and not name.endswith(".pth"):
            (site / entry.name).symlink_to(entry)
    (site / "fastv_trt").symlink_to(PACKAGE)
    return site


def test_run_works_where_torch_is_not_installed(without_torch: Path, bundle: Bundle, tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (50, 60), "red").save(tmp_path / "a.png")
    code = f"import sys; sys.path.insert(0, {str(without_torch)!r}); from fastv_trt.cli import main; main()"
    arguments = [
        "run",
        str(bundle.path),
        "-i",
        str(tmp_path / "a.png"),
        "-p",
        "what?",
        "--json",
        "--max-new-tokens",
        "3",
    ]
    command = [sys.executable, "-S", "-P", "-c", code, *arguments]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert '"kept_tokens": 12' in done.stdout
    probe = [sys.executable, "-S", "-P", "-c", f"import sys; sys.path.insert(0, {str(without_torch)!r}); import torch"]
    missing = subprocess.run(probe, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert "No module named 'torch'" in missing.stderr


ALLOWED = {
    "errors": set(),
    "hashes": set(),
    "bundle": {"errors", "hashes"},
    "pruning": {"errors"},
    "cost": {"bundle", "errors"},
    "families": {"errors"},
    "export": {"bundle", "pruning", "cost", "errors", "families"},
    "gpus": {"errors"},
    "paper": {"bundle"},
    "bench": {"bundle", "pruning", "cost", "errors", "nvidia", "runtime"},
    "nvidia": {"errors"},
    "plan": {"bundle", "cost", "gpus", "limits", "pruning"},
    "targets": {"bundle", "errors", "hashes", "nvidia"},
    "limits": {"bundle", "errors", "targets"},
    "engines": {"bundle", "pruning", "cost", "errors", "hashes", "limits", "nvidia", "targets"},
    "runtime": {"bundle", "pruning", "cost", "errors", "families", "hashes", "limits", "nvidia", "targets"},
    "calibration": {"bundle", "pruning", "cost", "errors", "hashes", "runtime", "export"},  # export: another K
    "verify": {"bundle", "pruning", "cost", "errors", "families", "nvidia", "runtime", "targets"},
}


def test_imports_point_one_way() -> None:
    """Rooms import only what design allows; nothing imports the command line."""
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room in ("cli", "__init__"):
            continue
        used = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fastv_trt."):
                used.add(str(node.module).split(".")[1])
            elif isinstance(node, ast.ImportFrom) and node.module == "fastv_trt":
                used |= {alias.name for alias in node.names if not alias.name.startswith("__")}
        assert used - {room} <= ALLOWED[room], f"{file.relative_to(PACKAGE)} imports {used - {room} - ALLOWED[room]}"
