"""The user's samples: a JSONL file of prompts about pictures, or a folder of pictures. No network."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, StrictStr, ValidationError

from fastv_trt.errors import InputError
from fastv_trt.hashes import sha256

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff")


class _Line(BaseModel):
    """One line of the file, as it is written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: StrictStr
    image: StrictStr | None = None
    images: tuple[StrictStr, ...] | None = None
    video: StrictStr | None = None
    answer: StrictStr | tuple[StrictStr, ...] | None = None


@dataclass(frozen=True)
class Sample:
    """One prompt about pictures.

    Attributes:
        prompt: the question.
        images: paths of its pictures, in order.
        answers: any of these is right; empty where the samples have no answers.
    """

    prompt: str
    images: tuple[Path, ...]
    answers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Samples:
    """All samples of one source.

    Attributes:
        items: one or more.
        sha256: of the file and of every picture: the same digest, the same samples.
        source: where they came from.
    """

    items: tuple[Sample, ...]
    sha256: str
    source: Path

    @property
    def answered(self) -> bool:
        """Whether the samples have answers: all of them do, or none does."""
        return bool(self.items[0].answers)

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, prompt: str = "Describe the image.") -> Samples:
        """Read samples.

        Args:
            path: a JSONL file, whose pictures are found relative to it, or a folder of pictures.
            prompt: asked about every picture of a folder.

        Raises:
            InputError: nothing there; a malformed line, with its number; a picture that does not exist; some samples
                with an answer and some without.
        """
        source = Path(path)
        if source.is_dir():
            found = sorted(p for p in source.iterdir() if p.suffix.lower() in PICTURES)
            items = tuple(Sample(prompt, (picture,)) for picture in found)
        elif source.is_file():
            items = _lines(source)
        else:
            raise InputError(f"expected samples (a JSONL file or a folder of pictures) at {source}, found nothing")
        if not items:
            kind = "pictures" if source.is_dir() else "lines"
            raise InputError(f"expected 1 or more samples in {source}, found no {kind}")
        return cls(items, _digest(source, items), source)


def _lines(source: Path) -> tuple[Sample, ...]:
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"expected UTF-8 text in {source}, found: {error}") from error
    numbered = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    items = [_sample(source, number, line) for number, line in numbered]
    for (number, _), item in zip(numbered, items, strict=True):
        if bool(item.answers) != bool(items[0].answers):
            has, first = ("an", "none") if item.answers else ("no", "one")
            raise InputError(
                f"expected answers in all samples or in none, found {has} answer in line {number} of {source} and "
                f"{first} in line {numbered[0][0]}"
            )
    return tuple(items)


def _sample(source: Path, number: int, line: str) -> Sample:
    where = f"line {number} of {source}"
    try:
        content = json.loads(line)
    except ValueError as error:
        raise InputError(f"expected a JSON object in {where}, found: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"expected a JSON object in {where}, found a {type(content).__name__}")
    try:
        read = _Line.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else "it"
        raise InputError(
            f"expected {{image|images, prompt, answer?}} in {where}, found at {field!r}: {first['msg']} "
            f"({json.dumps(content.get(field))})"
        ) from error
    if read.video is not None:
        raise InputError(f"expected image or images in {where}, found a video, which calibration cannot read yet")
    if (read.image is None) == (read.images is None):
        raise InputError(f"expected either image or images in {where}, found {'both' if read.image else 'neither'}")
    images = tuple(source.parent / name for name in (read.images or (read.image,)) if name is not None)
    if not images:
        raise InputError(f"expected 1 or more images in {where}, found an empty list")
    for image in images:
        if not image.is_file():
            raise InputError(f"expected a picture at {image} ({where}), found none")
    answers = (read.answer,) if isinstance(read.answer, str) else read.answer
    if answers is not None and not all(answer.strip() for answer in (answers or ("",))):
        raise InputError(f"expected an answer with text in {where}, found an empty one; leave it out if there is none")
    return Sample(read.prompt, images, answers or ())


def _digest(source: Path, items: tuple[Sample, ...]) -> str:
    digest = hashlib.sha256(sha256(source).encode() if source.is_file() else b"")
    hashed: dict[Path, str] = {}
    for item in items:
        digest.update(repr((item.prompt, item.answers)).encode())
        for image in item.images:
            hashed[image] = hashed.get(image) or sha256(image)
            digest.update(hashed[image].encode())
    return digest.hexdigest()
