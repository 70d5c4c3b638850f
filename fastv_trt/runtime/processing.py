"""Text, pictures and clips -> a request: the bundle's own processor files, read by transformers (no torch needed)."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastv_trt.bundle import Bundle
from fastv_trt.errors import BundleError, InputError
from fastv_trt.families import Media, by_name, join, mrope
from fastv_trt.families.base import Arrays
from fastv_trt.families.preprocessing import Preprocessing
from fastv_trt.pruning import image_positions
from fastv_trt.runtime.chain import Request
from fastv_trt.runtime.images import ImageLike, open_image
from fastv_trt.runtime.videos import VideoLike, open_video

Message = dict[str, Any]


class Processor:
    """Tokenizer, image processor and chat template of a bundle, and its family's way to use them."""

    def __init__(self, bundle: Bundle) -> None:
        """Load from a bundle's `processor` folder.

        Raises:
            BundleError: transformers cannot load it.
            UnsupportedModelError: the bundle's family is not installed.
        """
        manifest = bundle.manifest
        self.family = by_name(manifest.model.family)
        self._vision, self._ids = manifest.vision, manifest.tokens.image
        self._parts = Preprocessing.load(bundle.path / "processor", self.family.prompt_tokenizer, BundleError)
        self._tokenizer: Any = self._parts.tokenizer
        self._inputs = [record.name for record in manifest.graphs["vision"].inputs]
        self.image_token, self.video_token = manifest.image_token, manifest.vision.video_token
        tokens = [token for token in (self.image_token, self.video_token) if token is not None]
        self._placeholder = re.compile("|".join(re.escape(token) for token in tokens))

    @classmethod
    def of(cls, bundle: Bundle) -> Processor:
        """The processor of a bundle."""
        return cls(bundle)

    @property
    def has_chat_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    def user(self, text: str, images: int, videos: int = 0) -> Message:
        """A user's chat message. Pictures and clips go where the text says (their tokens), else before it.

        Raises:
            InputError: the text has placeholders, but not as many as there are pictures and clips.
        """
        found = [] if self.family.front else self._placeholder.findall(text)
        self._check_video(videos)
        if not found:
            content = [{"type": "image"}] * images + [{"type": "video"}] * videos + [{"type": "text", "text": text}]
            return {"role": "user", "content": content}
        self._check_placeholders(found, images, videos)
        content = []
        for index, piece in enumerate(self._placeholder.split(text)):
            if index:
                content.append({"type": "video" if found[index - 1] == self.video_token else "image"})
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
                f"expected a chat template in the bundle's processor, found none; give the whole prompt"
                f"{'' if self.family.front else f' with {self.image_token}'} and --raw"
            )
        try:
            return str(self._tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False))
        except Exception as error:  # jinja2's and the template's own
            raise InputError(f"expected a conversation that the chat template accepts, found: {error}") from error

    def request(
        self,
        prompt: str,
        images: Sequence[ImageLike] = (),
        videos: Sequence[VideoLike] = (),
        *,
        frames: int | None = None,
        continuing: bool = False,
    ) -> Request:
        """Tokenize a rendered prompt and preprocess its pictures.

        Args:
            prompt: with one image token per picture and one video token per clip.
            images: the pictures.
            videos: the clips: files, folders of pictures, or frames.
            frames: taken of each video; by default as many as the family says.
            continuing: a later turn: no start-of-text token is added.

        Raises:
            InputError: placeholders and pictures differ in number, or a picture cannot be read.
        """
        started = time.perf_counter()
        try:
            prompt.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError("expected a prompt of Unicode text, found bytes that are not UTF-8") from error
        media, text = self._expand(prompt, images, videos, frames)
        # A template that writes the start token itself must not get a second one.
        bos = self._tokenizer.bos_token
        special = not continuing and not (bos and prompt.startswith(bos))
        ids = np.asarray(self._tokenizer(text, add_special_tokens=special)["input_ids"], dtype=np.int64)
        if self.family.front and media:  # before the start token too
            ids = np.concatenate((np.full(media[0].sizes, self._ids[0], dtype=np.int64), ids))
        if not media:
            return Request(input_ids=ids, preprocess_seconds=time.perf_counter() - started)
        inputs = join(media)
        if self.family.prompt_tokenizer is not None:
            inputs["prompt_ids"] = np.asarray([self._parts.prompt_tokenizer(prompt)["input_ids"]], dtype=np.int64)
        position_ids = None
        if self.family.positions == "mrope":
            positions = image_positions(ids, self._ids)
            if len(positions) != sum(sum(item.sizes) for item in media):
                raise InputError("expected image tokens from pictures alone, found some in the text of the prompt")
            position_ids = mrope(len(ids), positions, media)
        return Request(
            input_ids=ids,
            vision_inputs={name: inputs[name] for name in self._inputs},
            image_sizes=tuple(sum(item.sizes) for item in media),
            preprocess_seconds=time.perf_counter() - started,
            position_ids=position_ids,
            frame_sizes=tuple(size for item in media for size in item.sizes),
        )

    def outputs(self, images: Sequence[ImageLike]) -> list[Arrays]:
        """What the image processor makes of each picture.

        Raises:
            InputError: a picture cannot be read, or is one that the image processor refuses.
        """
        pictures = [open_image(image) for image in images]
        batches = [pictures] if self.family.together and len(pictures) > 1 else [[picture] for picture in pictures]
        options = self._vision.settings.get("options", {})
        found: list[Arrays] = []
        for batch in batches:
            nested = [batch] if self.family.together else batch
            try:
                output = self._parts.image_processor(nested, return_tensors="np", **options)
            except (ValueError, TypeError, ZeroDivisionError) as error:
                raise InputError(f"expected pictures that the image processor accepts, found: {error}") from error
            arrays = {name: np.asarray(value) for name, value in output.items()}
            if len(batch) == 1:
                found.append(arrays)
            else:
                whole = {name: value for name, value in arrays.items() if len(value) == len(batch)}
                found += [{name: value[i : i + 1] for name, value in whole.items()} for i in range(len(batch))]
        return found

    def video_outputs(self, videos: Sequence[VideoLike], frames: int | None = None) -> list[Arrays]:
        """What the family makes of each clip, as a video processor would."""
        self._check_video(len(videos))
        video = self.family.video
        if video is None:
            return []
        clips = [open_video(source, frames or video.frames, video.multiple) for source in videos]
        return [video.outputs(self._vision.settings, clip) for clip in clips]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Token ids to text."""
        return str(
            self._tokenizer.decode(list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False)
        )

    def _expand(
        self, prompt: str, images: Sequence[ImageLike], videos: Sequence[VideoLike], frames: int | None
    ) -> tuple[list[Media], str]:
        """The pictures and clips in the order of the prompt, and the prompt with their tokens in it."""
        settings, video = self._vision.settings, self.family.video
        found = [] if self.family.front else self._placeholder.findall(prompt)
        if self.family.front and (len(images) > 1 or videos):
            raise InputError(f"expected at most one picture for {self.family.name}, found {len(images) + len(videos)}")
        if not self.family.front:
            self._check_placeholders(found, len(images), len(videos))
        pictures = iter([self.family.image(settings, outputs) for outputs in self.outputs(images)])
        if self.family.front:
            return list(pictures), prompt
        made = self.video_outputs(videos, frames)
        clips = iter([video.media(settings, outputs) for outputs in made] if video else [])
        media = [next(clips) if token == self.video_token else next(pictures) for token in found]
        texts = iter(media)
        return media, self._placeholder.sub(lambda _: next(texts).text, prompt)

    def _check_placeholders(self, found: Sequence[str], images: int, videos: int) -> None:
        clips = sum(token == self.video_token for token in found)
        if len(found) - clips != images:
            raise InputError(
                f"expected as many images as placeholders in the prompt, found {images} for {len(found) - clips}"
            )
        if clips != videos:
            raise InputError(f"expected as many videos as placeholders in the prompt, found {videos} for {clips}")

    def _check_video(self, videos: int) -> None:
        if videos and self.family.video is None:
            raise InputError(f"expected pictures for {self.family.name}, found a video, which it does not read")
