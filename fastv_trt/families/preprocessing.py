"""A folder's tokenizer, image processor and chat template, read by transformers apart from each other.

Apart, because `AutoProcessor` also wants the video processor, which needs torch and torchvision. Image processors
have a form that needs PIL and NumPy alone.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastv_trt.errors import InputError


@dataclass(frozen=True)
class Preprocessing:
    """What turns text and pictures into ids and arrays.

    Attributes:
        tokenizer: with the chat template, if there is one.
        image_processor: makes NumPy arrays of pictures.
        prompt_tokenizer: a second tokenizer, for families that have one.
        video: the video processor's values, as they stand in its JSON file; empty without one.
    """

    tokenizer: Any
    image_processor: Any
    prompt_tokenizer: Any
    video: Mapping[str, Any]

    @classmethod
    def load(cls, folder: Path, prompt_tokenizer: str | None, error: type[InputError] = InputError) -> Preprocessing:
        """Read a checkpoint's or a bundle's files. Nothing is downloaded, no code from the folder runs.

        Args:
            folder: where they are.
            prompt_tokenizer: name of a sub-folder with a second tokenizer.
            error: raised, in one line, if transformers cannot read them.
        """
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        logging.getLogger("transformers").setLevel(logging.ERROR)  # before its import: "PyTorch was not found"
        from transformers import AutoImageProcessor, AutoTokenizer
        from transformers.utils import logging as transformers_logging

        transformers_logging.set_verbosity_error()  # a prompt beyond the context is our error to report
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            pictures = AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil")
            second = None
            if prompt_tokenizer is not None:
                second = AutoTokenizer.from_pretrained(folder / prompt_tokenizer, local_files_only=True)
        except (OSError, ValueError, KeyError, TypeError, ImportError, AttributeError) as cause:
            reason = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
            raise error(f"expected a processor that transformers can load in {folder}, found: {reason}") from cause
        template = _template(folder)
        if template is not None:
            tokenizer.chat_template = template
        return cls(tokenizer, pictures, second, _video(folder))

    def save(self, folder: Path, prompt_tokenizer: str | None) -> None:
        """Write a bundle's processor folder."""
        self.tokenizer.save_pretrained(folder)
        self.image_processor.save_pretrained(folder)
        if prompt_tokenizer is not None:
            self.prompt_tokenizer.save_pretrained(folder / prompt_tokenizer)

    def token(self, name: str, default: str) -> str:
        """A special token by the name that the tokenizer has for it, such as "fake_image_token"."""
        return str(getattr(self.tokenizer, name, None) or default)


def _template(folder: Path) -> str | None:
    """The processor's own template where it stands apart from the tokenizer's: two older layouts."""
    for name in ("chat_template.json", "processor_config.json"):
        template = _json(folder / name).get("chat_template")
        if isinstance(template, str):
            return template
    return None


def _video(folder: Path) -> Mapping[str, Any]:
    """The video processor's values: nested in processor_config.json, or in a file of their own."""
    nested = _json(folder / "processor_config.json").get("video_processor")
    values: Mapping[str, Any] = nested if isinstance(nested, dict) else _json(folder / "video_preprocessor_config.json")
    return values


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
