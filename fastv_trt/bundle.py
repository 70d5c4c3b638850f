"""What is on disk: the manifest, the files and their hashes. Everyone else takes the value it returns.

A bundle is a folder (docs/bundle.md). `Bundle.open` reads and checks it; `writing` makes a new one beside
its final place and renames it when it is complete, so that a half-written bundle never looks whole.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fastv_trt.errors import BundleError, InputError
from fastv_trt.hashes import Hashes, sha256

RecordT = TypeVar("RecordT", bound=BaseModel)

SCHEMA_VERSION = 2
MANIFEST = "bundle.json"
# Made after the export and described by their own engine.json, so not listed in the manifest.
UNLISTED = ("engines",)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(_Record):
    """One file of the bundle: a POSIX path relative to the bundle, its size in bytes and its SHA-256."""

    path: str
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")

    @field_validator("path")
    @classmethod
    def _inside(cls, path: str) -> str:
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or "\\" in path or ":" in path or ".." in parts:
            raise ValueError(f"path {path!r} leaves the bundle")
        return path


class TensorRecord(_Record):
    """A graph's input or output. A dimension is a number, or a name of the graph contract (docs/bundle.md)."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    meaning: str


class GraphRecord(_Record):
    """One ONNX graph and the files that it needs."""

    path: str
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]


class ModelRecord(_Record):
    """Sizes of the model. Counts are exact; `max_positions` is the trained context in tokens."""

    family: str
    architecture: str
    layers: int
    hidden_size: int
    heads: int
    key_value_heads: int
    head_size: int
    ffn_size: int
    vocab_size: int
    max_positions: int
    parameters: int
    decoder: str


class TokenRecord(_Record):
    """Token ids that the runtime has to know. `image` holds every id that stands for an image token, of clips too."""

    image: tuple[int, ...]
    eos: tuple[int, ...]


class VisionRecord(_Record):
    """How pictures become tokens.

    Attributes:
        settings: what the family's host code has to know about this model.
        axes: largest size of each dynamic axis of the vision graph for one picture; the rest follow the prompt.
        positions: "1d", or "mrope": position ids have three rows, of time, row and column.
        deepstack: decoder layers after which vision features are added once more.
        video_token: placeholder of a clip in text; None if the model reads none.
    """

    settings: dict[str, Any]
    axes: dict[str, int]
    positions: Literal["1d", "mrope"] = "1d"
    deepstack: int = 0
    video_token: str | None = None


class VerificationRecord(_Record):
    """What `fastv-trt verify` measured last: worst values over its grid."""

    tool: str
    device: str
    cases: int
    max_abs_logit_difference: float
    min_cosine: float
    max_norm_ratio_error: float
    greedy_tokens_identical: int | None
    passed: bool


class PruningRecord(_Record):
    """A policy as plain values: the arguments of `fastv_trt.Pruning`, one of ratio, keep and mass given."""

    ratio: float | None = None
    keep: int | None = None
    mass: float | None = None
    min_keep: int = 0
    max_keep: int | None = None
    ranking: str
    scope: Literal["all", "image", "frame"] = "all"
    seed: int = 0


class OperatingPointRecord(_Record):
    """The default policy of this bundle, and what `fastv-trt calibrate` measured of it.

    Attributes:
        measure: what quality is: accuracy, agreement, kl or kl-forced.
        reference: quality at R = 0; accuracy and agreement in percent, KL in nats.
        quality, low, high: of the policy, with one-sided bounds of `confidence`; accuracy as the difference from the
            reference in points.
        ttft_ratio: median of TTFT over TTFT at R = 0, on `device`.
        kept_share: mean share of image tokens kept.
    """

    pruning: PruningRecord
    tool: str
    device: str
    samples: int
    samples_sha256: str
    budget: str
    measure: str
    reference: float
    quality: float
    low: float
    high: float
    confidence: float
    ttft_ratio: float
    kept_share: float


class QuantizationRecord(_Record):
    """How `fastv-trt quantize` made this bundle from a floating-point one.

    Attributes:
        target: what the form is for; "any" runs well on both.
        block: rows of a weight that share a scale; only for int4.
        smooth: alpha of the migration of scales from activations into weights; only for int8 and fp8.
        quantized: number of quantized weights per graph.
        excluded: weights of those graphs that were left in floating point.
        samples, samples_sha256: what activation ranges were collected on.
    """

    scheme: Literal["int8", "fp8", "int4"]
    target: Literal["tensorrt", "cpu", "any"]
    block: int | None
    smooth: float | None
    quantized: dict[str, int]
    excluded: tuple[str, ...]
    libraries: dict[str, str]
    samples: int
    samples_sha256: str


class Manifest(_Record):
    """bundle.json."""

    schema_version: int
    created_by: str
    model: ModelRecord
    k: int
    dtype: Literal["fp32", "fp16", "bf16"]
    rankings: tuple[str, ...]
    tokens: TokenRecord
    image_token: str
    vision: VisionRecord
    graphs: dict[str, GraphRecord]
    files: tuple[FileRecord, ...]
    verification: VerificationRecord | None = None
    operating_point: OperatingPointRecord | None = None
    quantization: QuantizationRecord | None = None


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read and checked.

    Attributes:
        path: the folder.
        manifest: its description.
    """

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, check_hashes: bool = True) -> Bundle:
        """Read a bundle.

        Args:
            path: the folder.
            check_hashes: compare every file with its SHA-256 (fastv_trt/hashes.py). Leave it on before loading a graph.

        Raises:
            BundleError: no bundle there; a file is missing, altered or foreign; the schema is newer.
        """
        root = Path(path)
        manifest = _read_manifest(root)
        bundle = cls(root, manifest)
        bundle._check_files(check_hashes)
        return bundle

    def graph_path(self, name: str) -> Path:
        """Path of the graph `name`.

        Raises:
            BundleError: the bundle has no such graph.
        """
        if name not in self.manifest.graphs:
            raise BundleError(f"expected a graph {name!r} in {self.path}, found {', '.join(self.manifest.graphs)}")
        return self.path / self.manifest.graphs[name].path

    @property
    def weight_bytes(self) -> int:
        """Bytes of all graphs, weights included."""
        return sum(file.bytes for file in self.manifest.files if file.path.startswith("onnx/"))

    def with_verification(self, record: VerificationRecord) -> Bundle:
        """Write what a verification measured into bundle.json and return the new value."""
        return self._with(verification=record)

    def with_operating_point(self, record: OperatingPointRecord) -> Bundle:
        """Write a default policy into bundle.json and return the new value."""
        return self._with(operating_point=record)

    def _with(self, **changes: BaseModel) -> Bundle:
        manifest = self.manifest.model_copy(update=changes)
        _write_manifest(self.path, manifest)
        return Bundle(self.path, manifest)

    def _check_files(self, check_hashes: bool) -> None:
        root = self.path.resolve()
        listed = {file.path for file in self.manifest.files}
        hashes = Hashes(root)
        for name, graph in self.manifest.graphs.items():
            if graph.path not in listed:
                raise BundleError(
                    f"expected graph {name!r} among the files of {self.path}, found {graph.path} unlisted"
                )
        for file in self.manifest.files:
            target = root / file.path
            if not target.is_file():
                raise BundleError(f"expected {file.path} in bundle {self.path}, found nothing; export it again")
            if not target.resolve().is_relative_to(root):
                raise BundleError(f"expected {file.path} inside bundle {self.path}, found a link that leaves it")
            if target.stat().st_size != file.bytes or (check_hashes and hashes.sha256(target) != file.sha256):
                raise BundleError(
                    f"expected {file.path} of bundle {self.path} as it was exported, found it altered; export it again"
                )
        for target in sorted(root.rglob("*")):
            relative = target.relative_to(root)
            if relative.parts[0] in UNLISTED or relative.as_posix() in (MANIFEST, *listed) or target.is_dir():
                continue
            raise BundleError(
                f"expected only exported files in bundle {self.path}, found {relative.as_posix()}; remove it"
            )
        hashes.save()


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary sibling of `path` to write a new bundle into; renamed on success, removed on failure.

    Raises:
        InputError: `path` exists already, or its parent folder cannot be made.
    """
    final = Path(path)
    refuse_existing(final)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".partial", dir=final.parent))
    except OSError as error:
        raise InputError(f"expected a folder that can be written at {final.parent}, found: {error.strerror}") from error
    try:
        yield temporary
        temporary.chmod(0o755)
        refuse_existing(final)
        temporary.rename(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def refuse_existing(path: Path) -> None:
    """Raise InputError if there is already something at `path`."""
    if path.exists() or path.is_symlink():
        raise InputError(f"expected {path} not to exist, found it; remove it or name another folder")


def finish(folder: Path, manifest: Manifest) -> Manifest:
    """List and hash every file under `folder` and write bundle.json there; returns the complete manifest."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)
    files = tuple(
        FileRecord(path=p.relative_to(folder).as_posix(), bytes=p.stat().st_size, sha256=sha256(p)) for p in paths
    )
    complete = manifest.model_copy(update={"files": files})
    _write_manifest(folder, complete)
    return complete


def _read_manifest(root: Path) -> Manifest:
    path = root / MANIFEST
    if not path.is_file():
        raise BundleError(f"expected a bundle (a folder with {MANIFEST}) at {root}, found none; make one with export")
    content = read_json(path)
    version = content.get("schema_version") if isinstance(content, dict) else None
    if not isinstance(version, int):
        raise BundleError(f"expected a schema_version in {path}, found none; this is not a fastv-trt bundle")
    if version > SCHEMA_VERSION:
        raise BundleError(f"expected schema {SCHEMA_VERSION} or older in {path}, found {version}; upgrade fastv-trt")
    if version == 1 and isinstance(content, dict):
        content = _from_schema_1(root, content)
    return validated(Manifest, content, f"a valid manifest in {path}")


def _from_schema_1(root: Path, content: dict[str, Any]) -> dict[str, Any]:
    """A manifest of schema 1, which knew LLaVA alone and left the size of a picture to its processor's files."""
    try:
        processor = json.loads((root / "processor" / "processor_config.json").read_text(encoding="utf-8"))
        pixels = next(i for i in content["graphs"]["vision"]["inputs"] if i["name"] == "pixel_values")
        tokens = (int(pixels["shape"][2]) // int(processor["patch_size"])) ** 2
        tokens += int(processor.get("num_additional_image_tokens", 0))
        tokens -= int(processor.get("vision_feature_select_strategy") == "default")
        settings = {"tokens": tokens, "image": content["image_token"]}
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise BundleError(
            f"expected a whole bundle of schema 1 in {root}, found: {error!r}; export it again"
        ) from error
    return {**content, "schema_version": SCHEMA_VERSION, "vision": {"settings": settings, "axes": {"I": 1}}}


def read_json(path: Path) -> object:
    """The JSON document in a file.

    Raises:
        BundleError: it cannot be read, or is not JSON.
    """
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BundleError(f"expected JSON in {path}, found: {error}") from error
    return content


def validated(kind: type[RecordT], content: object, expected: str) -> RecordT:
    """A JSON document as a record.

    Raises:
        BundleError: it is not one; names the first field that is wrong.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BundleError(f"expected {expected}, found at {where}: {first['msg']}") from error


def _write_manifest(root: Path, manifest: Manifest) -> None:
    temporary = root / f".{MANIFEST}.partial"
    temporary.write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    temporary.replace(root / MANIFEST)
