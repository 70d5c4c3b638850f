"""One sample at many points: vision and prefix run once, then every policy ranks and runs the suffix.

The points of a sample are measured one after another, in an order that turns with the sample, so that a slower
machine or a warmer cache meets all of them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastv_trt.calibration.budget import Outcome
from fastv_trt.calibration.metrics import Metric, kl_divergence
from fastv_trt.calibration.points import Point
from fastv_trt.calibration.samples import Sample
from fastv_trt.errors import InputError
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Prefill, Request, Runtime
from fastv_trt.runtime.caches import Caches
from fastv_trt.runtime.chain import Read

UNPRUNED = Pruning(ratio=0.0)


@dataclass(frozen=True)
class Answered:
    """What the model said, and the logits that it said it from.

    Attributes:
        tokens: greedy ids; when forced, the argmax at every step.
        logits: float32 [V] per token.
    """

    tokens: tuple[int, ...]
    logits: tuple[NDArray[np.float32], ...]


@dataclass(frozen=True)
class Bench:
    """A loaded bundle with what turns a sample into outcomes.

    Attributes:
        metric: judges answers; None where the samples have none.
        new_tokens: at most this many per answer.
    """

    runtime: Runtime
    metric: Metric | None
    new_tokens: int

    def request(self, sample: Sample) -> Request:
        """Raises InputError if the sample's prompt or pictures do not fit the model."""
        request = self.runtime.request(sample.prompt, list(sample.images))
        self.runtime.chain.check_length(len(request.input_ids), self.new_tokens)
        return request

    def outcomes(self, sample: Sample, points: Sequence[Point], turn: int) -> dict[Point, Outcome]:
        """Measure `points`, the reference among them, on one sample."""
        chain, request = self.runtime.chain, self.request(sample)
        caches = chain.caches([request], [UNPRUNED], self.new_tokens)
        read = chain.read(caches, 0, request)
        said = self.say(caches, self._prefill(caches, request, UNPRUNED, read))
        result: dict[Point, Outcome] = {}
        for point in (*points[turn % len(points) :], *points[: turn % len(points)]):
            prefill = self._prefill(caches, request, point.pruning, read)
            result[point] = self._outcome(caches, prefill, said, sample)
        return result

    def scores(self, sample: Sample, rankings: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Scores of one sample's image tokens by ranking, each [M]."""
        chain, request = self.runtime.chain, self.request(sample)
        caches = chain.caches([request], [UNPRUNED], 1)
        read = chain.read(caches, 0, request)
        found = {}
        for name in rankings:
            scores = chain.scores(caches, 0, request, Pruning(ratio=0.5, ranking=name), read)
            if scores is None:
                raise InputError(f"expected a ranking with scores, found {name!r}")
            found[name] = scores
        return found

    def _prefill(self, caches: Caches, request: Request, pruning: Pruning, read: Read) -> Prefill:
        caches.rewind(0)
        return self.runtime.chain.prune(caches, 0, request, pruning, read)

    def say(self, caches: Caches, prefill: Prefill, forced: Sequence[int] | None = None) -> Answered:
        """Greedy decode after a prefill, or with `forced` tokens fed instead of the model's own."""
        stop = self.runtime.bundle.manifest.tokens.eos
        logits = [prefill.logits]
        tokens = [int(prefill.logits.argmax())]
        most = self.new_tokens if forced is None else len(forced)
        while len(tokens) < most:
            last = tokens[-1] if forced is None else forced[len(tokens) - 1]
            if last in stop:
                break
            logits.append(self.runtime.chain.decode(caches, [last])[0])
            tokens.append(int(logits[-1].argmax()))
        return Answered(tuple(tokens), tuple(logits))

    def _outcome(self, caches: Caches, prefill: Prefill, said: Answered, sample: Sample) -> Outcome:
        own = self.say(caches, prefill, None if self.metric is not None else said.tokens)
        quality = forced = None
        if self.metric is not None:
            text = self.runtime.processor.decode(own.tokens).strip()
            quality = self.metric(text, sample.answers)
        else:
            forced = float(np.mean([kl_divergence(a, b) for a, b in zip(said.logits, own.logits, strict=True)]))
        return Outcome(
            quality=quality,
            match=own.tokens == said.tokens,
            kl=kl_divergence(said.logits[0], prefill.logits),
            kl_forced=forced,
            kept=prefill.kept_tokens / prefill.image_tokens if prefill.image_tokens else 1.0,
            ttft=prefill.ttft,
        )
