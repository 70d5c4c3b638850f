"""What is on disk under a bundle's engines/: one folder per target, its plans and engine.json.

`bundle.py` describes what was exported, this file what was compiled from it. Everyone else takes the value
that `Target.open` returns; nothing needs a GPU, or TensorRT, to be inspected.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

from fastv_trt.bundle import Bundle, FileRecord, read_json, validated
from fastv_trt.errors import BundleError
from fastv_trt.hashes import sha256
from fastv_trt.nvidia import Gpus

SCHEMA_VERSION = 1
DESCRIPTION = "engine.json"
SELF_TEST = "self-test.json"
FOLDER = "engines"

Backend = Literal["tensorrt", "tensorrt-rtx"]
Shape = Annotated[tuple[int, ...], BeforeValidator(tuple)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class IoRecord(_Record):
    """One input or output of an engine. -1 is a dynamic dimension; `axes` has its name in the graph contract.

    A `shape_tensor` is an input whose values, not only its shape, decide other shapes; it lives on the host.
    """

    name: str
    dtype: str
    shape: Shape
    axes: tuple[int | str, ...]
    shape_tensor: bool


class RangeRecord(_Record):
    """Smallest, optimal and largest shape of one input in one profile."""

    min: Shape
    opt: Shape
    max: Shape


class ProfileRecord(_Record):
    """One optimization profile; its index is its place in `EngineRecord.profiles`."""

    name: str
    shapes: dict[str, RangeRecord]

    def admits(self, shapes: dict[str, tuple[int, ...]]) -> bool:
        """Whether every input shape is within this profile."""
        return not self.refusals(shapes)

    def excess(self, shapes: dict[str, tuple[int, ...]]) -> float:
        """How far the shapes are beyond this profile: the largest ratio of a size to its maximum."""
        ratios = [
            size / max(most, 1)
            for name, limits in self.shapes.items()
            for size, most in zip(shapes[name], limits.max, strict=False)
        ]
        return max(ratios, default=0.0)

    def refusals(self, shapes: dict[str, tuple[int, ...]]) -> list[str]:
        """What does not fit, one text per dimension that is out of range."""
        found = []
        for name, limits in self.shapes.items():
            shape = shapes[name]
            if len(shape) != len(limits.min):
                found.append(f"{name} has {len(shape)} dimensions, not {len(limits.min)}")
                continue
            for axis, size in enumerate(shape):
                if not limits.min[axis] <= size <= limits.max[axis]:
                    found.append(f"{name} axis {axis} is {size}, not {limits.min[axis]}..{limits.max[axis]}")
        return found


class EngineRecord(_Record):
    """One plan.

    Attributes:
        plan: the file, relative to the target's folder.
        source: SHA-256 of the graph's files, by their path in the bundle: what the plan was compiled from.
        aliases: output -> the input whose memory it must share (the in-place caches).
    """

    plan: FileRecord
    source: dict[str, str]
    inputs: tuple[IoRecord, ...]
    outputs: tuple[IoRecord, ...]
    profiles: tuple[ProfileRecord, ...]
    aliases: dict[str, str]


class LimitsRecord(_Record):
    """What a request may be, in tokens, images and rows; capacities are cache slots per row."""

    max_prompt: int
    max_images: int
    max_batch: int
    kept: tuple[int, int, int]
    prefix_capacity: int
    suffix_capacity: int


class TargetManifest(_Record):
    """engine.json. It has no time stamp, so that the same build gives the same file.

    Attributes:
        compute_capabilities: of the GPUs that the plans run on, as "8.6".
        flags: what the builder was told.
        steady: whether the compiler ran where addresses and threads are not left to chance, so that the same build
            of the same bundle gives the same bytes (docs/engines.md, "The same build again").
    """

    schema_version: int
    created_by: str
    backend: Backend
    library_version: str
    compute_capabilities: tuple[str, ...]
    precision: Literal["fp32", "fp16", "bf16"]
    flags: tuple[str, ...]
    steady: bool
    limits: LimitsRecord
    engines: dict[str, EngineRecord]


class SelfTestRecord(_Record):
    """What comparing the engines with ONNX Runtime gave last, on a GPU: worst figures over every output of every graph.

    It lies beside engine.json in a file of its own, so that engine.json stays the same for the same build.
    """

    tool: str
    device: str
    outputs: int
    min_cosine: float
    max_norm_ratio_error: float
    passed: bool


@dataclass(frozen=True)
class Target:
    """One folder under engines/, read and checked."""

    path: Path
    manifest: TargetManifest

    @property
    def name(self) -> str:
        return self.path.name

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, check_hashes: bool = True) -> Target:
        """Read a target.

        Args:
            path: the folder.
            check_hashes: compare every plan with its SHA-256. Leave it on before loading one: a plan is code.

        Raises:
            BundleError: no target there; a plan is missing or altered; the schema is newer.
        """
        root = Path(path)
        target = cls(root, _read(root))
        for engine in target.manifest.engines.values():
            target._check_plan(engine.plan, check_hashes)
        return target

    def plan_path(self, graph: str) -> Path:
        """Path of the plan of `graph`.

        Raises:
            BundleError: the target has none.
        """
        if graph not in self.manifest.engines:
            found = ", ".join(self.manifest.engines)
            raise BundleError(f"expected a plan of {graph!r} in {self.path}, found {found}; build it again")
        return self.path / self.manifest.engines[graph].plan.path

    def self_test(self) -> SelfTestRecord | None:
        """The last comparison with ONNX Runtime, or None if there was none.

        Raises:
            BundleError: the record is damaged.
        """
        path = self.path / SELF_TEST
        return validated(SelfTestRecord, read_json(path), f"a valid record in {path}") if path.is_file() else None

    def with_self_test(self, record: SelfTestRecord) -> None:
        """Write the record of a comparison, in one step."""
        path = self.path / SELF_TEST
        temporary = path.with_name(f".{path.name}")
        temporary.write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)

    def stale(self, bundle: Bundle) -> list[str]:
        """Why these plans are not this bundle's: graphs that changed, or were never compiled."""
        found = [f"{name} was not compiled" for name in bundle.manifest.graphs if name not in self.manifest.engines]
        hashes = {file.path: file.sha256 for file in bundle.manifest.files}
        for engine in self.manifest.engines.values():
            changed = [path for path, digest in engine.source.items() if hashes.get(path) != digest]
            found.extend(f"{path} has changed since it was compiled" for path in changed)
        return found

    def obstacles(self, bundle: Bundle, gpus: Gpus, version: str | None, *, trust_self_test: bool = True) -> list[str]:
        """Why these plans cannot run here, one text per reason; empty if they can.

        Args:
            bundle: whose graphs they should be.
            gpus: what is in this machine.
            version: of the installed library of this target's backend; None without it.
            trust_self_test: a failed self-test is an obstacle. Not when it is run again.
        """
        found, manifest = self.stale(bundle), self.manifest
        tested = self.self_test()
        if trust_self_test and tested is not None and not tested.passed:
            found.append("its self-test failed: wrong numbers on a GPU; build it again, or run verify --engine again")
        if version is None:
            found.append(f"{manifest.backend} is not installed; pip install 'fastv-trt[{manifest.backend}]'")
        elif version != manifest.library_version:
            found.append(
                f"compiled with {manifest.backend} {manifest.library_version}, and {version} is installed; build again"
            )
        if not gpus.devices:
            found.append(f"no NVIDIA GPU ({gpus.reason})")
        elif not any(gpu.compute in manifest.compute_capabilities for gpu in gpus.devices):
            own = ", ".join(f"{gpu.name} ({gpu.compute})" for gpu in gpus.devices)
            found.append(
                f"compiled for compute capability {', '.join(manifest.compute_capabilities)}, and here is {own}"
            )
        return found

    def _check_plan(self, plan: FileRecord, check_hashes: bool) -> None:
        path = self.path / plan.path
        if not path.is_file() or not path.resolve().is_relative_to(self.path.resolve()):
            raise BundleError(f"expected the plan {plan.path} in {self.path}, found none; build it again")
        if path.stat().st_size != plan.bytes or (check_hashes and sha256(path) != plan.sha256):
            raise BundleError(f"expected {path} as it was built, found it altered; build it again")


def of(bundle: Bundle) -> tuple[Path, ...]:
    """Folders of a bundle's targets, by name. Half-written ones, whose names begin with a dot, are left out."""
    folder = bundle.path / FOLDER
    if not folder.is_dir():
        return ()
    return tuple(sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")))


def write(folder: Path, manifest: TargetManifest) -> None:
    """Write engine.json into a target's folder."""
    (folder / DESCRIPTION).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def _read(root: Path) -> TargetManifest:
    path = root / DESCRIPTION
    if not path.is_file():
        raise BundleError(f"expected engines (a folder with {DESCRIPTION}) at {root}, found none; make them with build")
    content = read_json(path)
    version = content.get("schema_version") if isinstance(content, dict) else None
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise BundleError(f"expected schema {SCHEMA_VERSION} in {path}, found {version}; build it again")
    return validated(TargetManifest, content, f"a valid description in {path}")
