"""Text and pictures -> a request: the bundle's own processor files, read by transformers (no torch needed)."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastv_trt.bundle import Bundle
from fastv_trt.errors import BundleError, InputError
from fastv_trt.runtime.chain import Request
from fastv_trt.runtime.images import ImageLike, open_image

Message = dict[str, Any]


class Processor:
    """Tokenizer, image processor and chat template of a bundle."""

    def __init__(self, folder: Path, image_token: str, image_token_ids: Sequence[int], vision_inputs: Sequence[str]):
        """Load from a bundle's `processor` folder.

        Raises:
            BundleError: transformers cannot load it.
        """
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        logging.getLogger("transformers").setLevel(logging.ERROR)  # before its import: "PyTorch was not found"
        from transformers import AutoProcessor
        from transformers.utils import logging as transformers_logging

        transformers_logging.set_verbosity_error()  # a prompt beyond the context is our error to report

        try:
            self._processor: Any = AutoProcessor.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError, ImportError, TypeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise BundleError(
                f"expected a processor that transformers can load in {folder}, found: {reason}"
            ) from error
        self._tokenizer: Any = self._processor.tokenizer
        self.image_token, self._ids, self._vision_inputs = (
            image_token,
            list(image_token_ids),
            list(vision_inputs),
        )

    @classmethod
    def of(cls, bundle: Bundle) -> Processor:
        """The processor of a bundle."""
        manifest = bundle.manifest
        names = [record.name for record in manifest.graphs["vision"].inputs]
        return cls(bundle.path / "processor", manifest.image_token, manifest.tokens.image, names)

    @property
    def has_chat_template(self) -> bool:
        return bool(self._processor.chat_template or self._tokenizer.chat_template)

    def user(self, text: str, images: int) -> Message:
        """A user's chat message. Pictures go where the text says (the image token), else before it.

        Raises:
            InputError: the text has placeholders, but not as many as there are images.
        """
        pieces = text.split(self.image_token)
        if len(pieces) - 1 not in (0, images):
            raise InputError(_mismatch(len(pieces) - 1, images))
        content: list[dict[str, str]] = []
        if len(pieces) == 1:
            content = [{"type": "image"}] * images + [{"type": "text", "text": text}]
        else:
            for index, piece in enumerate(pieces):
                content += [{"type": "image"}] * bool(index)
                content += [{"type": "text", "text": piece.strip()}] if piece.strip() else []
        return {"role": "user", "content": content}

    def assistant(self, text: str) -> Message:
        return {"role": "assistant", "content": [{"type": "text", "text": text}]}

    def render(self, messages: Sequence[Message]) -> str:
        """The chat template over `messages`, ending where the assistant is to speak.

        Raises:
            InputError: there is no template, or it refuses the messages.
        """
        if not self.has_chat_template:
            raise InputError(
                f"expected a chat template in the bundle's processor, found none; give the whole prompt with "
                f"{self.image_token} and --raw"
            )
        try:
            return str(self._processor.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False))
        except Exception as error:  # jinja2's and the template's own
            raise InputError(f"expected a conversation that the chat template accepts, found: {error}") from error

    def request(self, prompt: str, images: Sequence[ImageLike] = (), *, continuing: bool = False) -> Request:
        """Tokenize a rendered prompt and preprocess its pictures.

        Args:
            prompt: with one image token per picture.
            images: the pictures.
            continuing: a later turn: no start-of-text token is added.

        Raises:
            InputError: placeholders and pictures differ in number, or a picture cannot be read.
        """
        started = time.perf_counter()
        try:
            prompt.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError("expected a prompt of Unicode text, found bytes that are not UTF-8") from error
        placeholders = prompt.count(self.image_token)
        if placeholders != len(images):
            raise InputError(_mismatch(placeholders, len(images)))
        pictures = [open_image(image) for image in images]
        # A template that writes the start token itself must not get a second one.
        bos = self._tokenizer.bos_token
        special = not continuing and not (bos and prompt.startswith(bos))
        if not pictures:
            ids = np.asarray(self._tokenizer(prompt, add_special_tokens=special)["input_ids"], dtype=np.int64)
            return Request(input_ids=ids, preprocess_seconds=time.perf_counter() - started)
        try:
            encoded = self._processor(images=pictures, text=prompt, return_tensors="np", add_special_tokens=special)
        except (ValueError, TypeError) as error:
            raise InputError(f"expected pictures that the image processor accepts, found: {error}") from error
        ids = np.asarray(encoded["input_ids"], dtype=np.int64)[0]
        total = int(np.isin(ids, self._ids).sum())
        return Request(
            input_ids=ids,
            vision_inputs={name: np.asarray(encoded[name]) for name in self._vision_inputs},
            image_sizes=(total // len(pictures),) * len(pictures),
            preprocess_seconds=time.perf_counter() - started,
        )

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Token ids to text."""
        return str(
            self._tokenizer.decode(list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False)
        )


def _mismatch(placeholders: int, images: int) -> str:
    return f"expected as many images as placeholders in the prompt, found {images} for {placeholders}"
