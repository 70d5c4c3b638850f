"""The user's handle: a bundle, loaded; prompts and pictures in, text out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fastv_trt.bundle import Bundle, Manifest
from fastv_trt.errors import InputError
from fastv_trt.limits import BuildLimits
from fastv_trt.pruning import Pruning
from fastv_trt.runtime.caches import Caches
from fastv_trt.runtime.chain import Chain, Prefill, Request
from fastv_trt.runtime.devices import open_device
from fastv_trt.runtime.generation import Generation, Limits
from fastv_trt.runtime.images import ImageLike
from fastv_trt.runtime.processing import Message, Processor
from fastv_trt.runtime.sampling import Sampling
from fastv_trt.runtime.videos import VideoLike

ANSWER = "\u27e6answer\u27e7"
"""Stands for an answer when a conversation is rendered: the answer itself is in the caches, as tokens."""


def default_pruning(manifest: Manifest) -> Pruning:
    """The policy of a bundle that was asked for nothing else."""
    if manifest.operating_point is not None:
        return Pruning(**manifest.operating_point.pruning.model_dump())
    return Pruning(ratio=0.5, ranking=(*manifest.rankings, "random")[0])


@dataclass(frozen=True)
class Answer:
    """What one row of a generation gave.

    Attributes:
        text: the answer, special tokens left out.
        tokens: generated ids, the stop token included.
        prefill: what the prefill did: kept tokens, scores, timings, notes.
        decode_seconds: all decode steps of the batch.
        decode_steps: their number.
        timings: seconds by part.
        kv_bytes: bytes allocated for the batch's keys and values.
    """

    text: str
    tokens: tuple[int, ...]
    prefill: Prefill
    decode_seconds: float
    decode_steps: int
    kv_bytes: int

    @property
    def image_tokens(self) -> int:
        return self.prefill.image_tokens

    @property
    def kept_tokens(self) -> int:
        return self.prefill.kept_tokens

    @property
    def keep_indices(self) -> NDArray[np.int64]:
        return self.prefill.keep_indices

    @property
    def scores(self) -> NDArray[np.float32] | None:
        return self.prefill.scores

    @property
    def timings(self) -> dict[str, float]:
        """Seconds: preprocess, vision, prefix, rank+select, suffix, decode."""
        return {**self.prefill.timings, "decode": self.decode_seconds}


@dataclass(frozen=True)
class Runtime:
    """A loaded bundle.

    >>> runtime = Runtime.load("bundle")
    >>> runtime.generate("What digit is red?", images=["a.png"], pruning=Pruning(ratio=0.5)).text
    """

    bundle: Bundle
    chain: Chain

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | Bundle,
        *,
        device: str = "cpu",
        engine: str | None = None,
        threads: int | None = None,
        limits: BuildLimits | None = None,
    ) -> Runtime:
        """Open a bundle, check its hashes and load its graphs.

        Args:
            device: "cpu", "cuda", "tensorrt" or "tensorrt-rtx": a provider of ONNX Runtime.
            engine: a target that was built, or "auto" for the first that runs here, instead of a provider.
            threads: of the CPU; by default all cores.
            limits: what a request may be on the two TensorRT providers, which compile as they load.

        Raises:
            BundleError: the bundle is not whole.
            UnavailableError: the device is not there.
        """
        bundle = path if isinstance(path, Bundle) else Bundle.open(path)
        return cls(bundle, Chain(bundle, open_device(bundle, device, engine=engine, threads=threads, limits=limits)))

    @cached_property
    def processor(self) -> Processor:
        """Loaded when text or pictures first need it; ids and pixel values never do."""
        return Processor.of(self.bundle)

    @property
    def default_pruning(self) -> Pruning:
        """What the bundle was calibrated to; else R = 0.5 by its first ranking (random at K = 0)."""
        return default_pruning(self.bundle.manifest)

    def request(
        self,
        prompt: str,
        images: Sequence[ImageLike] = (),
        *,
        videos: Sequence[VideoLike] = (),
        frames: int | None = None,
        raw: bool = False,
    ) -> Request:
        """Make a request of a prompt: through the chat template, or as it stands if `raw`."""
        for name, given in (("images", images), ("videos", videos)):
            if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):  # a path is a sequence of characters
                raise InputError(
                    f"expected a list of {name}, found {type(given).__name__}; write [{name[:-1]}] for one"
                )
        processor = self.processor
        plain = raw or (processor.family.front and not processor.has_chat_template)
        text = prompt if plain else processor.render([processor.user(prompt, len(images), len(videos))])
        return processor.request(text, images, videos, frames=frames)

    def generate(
        self,
        prompt: str,
        images: Sequence[ImageLike] = (),
        *,
        videos: Sequence[VideoLike] = (),
        frames: int | None = None,
        pruning: Pruning | None = None,
        limits: Limits = Limits(),
        sampling: Sampling = Sampling(),
        raw: bool = False,
    ) -> Answer:
        """Answer one prompt.

        Args:
            prompt: the question; with `raw`, the whole prompt with an image token per picture.
            images: paths, PIL images or arrays.
            videos: files, folders of pictures, or clips.
            frames: taken of each video; by default as many as the model's family says.
            pruning: what to drop after layer K; None is `default_pruning`. `Pruning(ratio=0)` runs the model unpruned.
            limits: number of new tokens, stop tokens.
            sampling: greedy unless told otherwise.
        """
        return self.answers(
            [self.request(prompt, images, videos=videos, frames=frames, raw=raw)], pruning, limits, sampling
        )[0]

    def answers(
        self,
        requests: Sequence[Request],
        pruning: Pruning | Sequence[Pruning] | None = None,
        limits: Limits = Limits(),
        sampling: Sampling = Sampling(),
    ) -> list[Answer]:
        """Answer several requests, decoded together; they may differ in length and in pruning."""
        policy = self.default_pruning if pruning is None else pruning
        generation = Generation.start(self.chain, requests, policy, limits, sampling).finish()
        return [self.answer(generation, row) for row in range(len(requests))]

    def stream(
        self,
        request: Request,
        pruning: Pruning | None = None,
        limits: Limits = Limits(),
        sampling: Sampling = Sampling(),
    ) -> Stream:
        """Answer one request piece by piece: iterate for text, then read `answer`."""
        policy = self.default_pruning if pruning is None else pruning
        return Stream(self, Generation.start(self.chain, [request], policy, limits, sampling))

    def answer(self, generation: Generation, row: int) -> Answer:
        """The result of one row of a generation that has run."""
        return Answer(
            text=self.processor.decode(generation.tokens[row]).strip(),
            tokens=tuple(generation.tokens[row]),
            prefill=generation.prefills[row],
            decode_seconds=generation.decode_seconds,
            decode_steps=generation.decode_steps,
            kv_bytes=generation.caches.bytes,
        )

    def conversation(self, pruning: Pruning | None = None) -> Conversation:
        """Start a chat whose turns share their caches."""
        return Conversation(self, self.default_pruning if pruning is None else pruning)


@dataclass
class Stream:
    """An answer on its way."""

    runtime: Runtime
    generation: Generation

    def __iter__(self) -> Iterator[str]:
        shown = ""
        for _ in self.generation:
            text = self.runtime.processor.decode(self.generation.tokens[0]).lstrip()
            # A character of several bytes may come in several tokens.
            if not text.endswith("�") and len(text) > len(shown):
                yield text[len(shown) :]
                shown = text

    @property
    def answer(self) -> Answer:
        return self.runtime.answer(self.generation, 0)


@dataclass
class Conversation:
    """A chat. What the first turn pruned stays pruned; only new image tokens are ranked in a later turn.

    Source: FastV prunes once, at prefill; shared by all of the authors' variants.
    """

    runtime: Runtime
    pruning: Pruning
    _messages: list[Message] = field(default_factory=list)
    _rendered: str = ""
    _pending: list[int] = field(default_factory=list)
    _caches: Caches | None = None

    def ask(
        self,
        text: str,
        images: Sequence[ImageLike] = (),
        *,
        limits: Limits = Limits(),
        sampling: Sampling = Sampling(),
    ) -> Answer:
        """Say something and get the answer.

        Raises:
            InputError: the chat template rewrites earlier turns, so that their caches cannot be used.
        """
        processor = self.runtime.processor
        messages = [*self._messages, processor.user(text, len(images))]
        rendered = processor.render(messages)
        said = rendered[len(self._rendered) :]
        pending = self._pending
        if self._messages:
            # What the model said is in its caches as tokens; only what the template puts after it is new.
            _, found, said = said.partition(ANSWER)
            if not found or not rendered.startswith(self._rendered):
                raise InputError(
                    "expected a chat template that only adds to what was said, found one that rewrites earlier "
                    "turns; start a new conversation"
                )
            if pending and said.lstrip().startswith(processor.decode(pending, special=True).strip() or " "):
                pending = []  # the template ends the answer with the stop token that the model gave
        request = processor.request(said, images, continuing=bool(self._messages))
        request = request.after(pending)
        generation = Generation.start(self.runtime.chain, [request], self.pruning, limits, sampling, self._caches)
        generation.finish()
        # The last token of an answer was generated but not yet read by the model.
        self._caches, self._pending, self._rendered = generation.caches, generation.tokens[0][-1:], rendered
        self._messages = [*messages, processor.assistant(ANSWER)]
        return self.runtime.answer(generation, 0)
