"""Rounds of prefill and decode over several ratios R, so that each can be compared with R = 0 of the same round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fastv_trt.bench.machine import Noise, watching
from fastv_trt.bundle import Bundle
from fastv_trt.errors import InputError
from fastv_trt.pruning import FREE_RANKINGS, Pruning
from fastv_trt.runtime import Request, Runtime

PARTS = ("preprocess", "vision", "prefix", "rank+select", "suffix")
DECODER = ("prefix", "rank+select", "suffix")


@dataclass
class Point:
    """One ratio and batch size: seconds of every round.

    Attributes:
        prefills: by part, one per round: of the batch's first row.
        steps: of every decode step of the whole batch.
        kv_bytes: allocated for the batch.
    """

    ratio: float
    batch: int
    kept: int = 0
    kv_bytes: int = 0
    prefills: list[dict[str, float]] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)

    def sums(self, names: Sequence[str]) -> list[float]:
        """Seconds of several parts together, one per round."""
        return [sum(parts[name] for name in names) for parts in self.prefills]

    def against(self, base: Point, names: Sequence[str]) -> float:
        """Median over rounds of this point's time divided by the base's time in the same round."""
        return statistics.median(a / b for a, b in zip(self.sums(names), base.sums(names), strict=True))


@dataclass(frozen=True)
class Prompt:
    """What every request of a measurement looks like; `make` prepares one, which is timed as its preprocessing."""

    make: Callable[[], Request]
    tokens: int
    image_tokens: int


def image_request(bundle: Bundle, text_tokens: int, image_tokens: int) -> Request:
    """Random text ids around `image_tokens` placeholders without a picture: the decoder's work, and no vision's.

    An image token without a feature is embedded as text (docs/bundle.md), which costs the decoder the same.
    """
    tokens = bundle.manifest.tokens
    others = np.setdiff1d(np.arange(bundle.manifest.model.vocab_size), [*tokens.image, *tokens.eos])
    text = np.random.default_rng(0).choice(others, text_tokens).astype(np.int64)
    ids = np.concatenate((text[:1], np.full(image_tokens, tokens.image[0]), text[1:]))
    return Request(ids, {}, (image_tokens,) if image_tokens else ())


def check(
    runtime: Runtime,
    prompt: Prompt,
    ratios: Sequence[float],
    *,
    batch: int,
    runs: int,
    warmup: int,
    new_tokens: int,
    ranking: str,
) -> None:
    """Refuse, before anything runs, what `measure` could not do; the arguments are its own.

    Raises:
        InputError: no runs, a batch or count below 1, a ranking that is not there, or a prompt that the model or the
            device cannot hold.
    """
    for name, value, least in (("runs", runs, 1), ("rows", batch, 1), ("new tokens", new_tokens, 1)):
        if value < least:
            raise InputError(f"expected {least} or more {name}, found {value}")
    if warmup < 0:
        raise InputError(f"expected 0 or more warm-up runs, found {warmup}")
    policies = [Pruning(ratio=ratio, ranking=ranking) for ratio in ratios]
    if ranking not in FREE_RANKINGS and any(policy.asked for policy in policies):
        runtime.chain.check_ranking(ranking)
    runtime.chain.caches([prompt.make()] * batch, [Pruning(ratio=0.0)] * batch, new_tokens)


def measure(
    runtime: Runtime,
    prompt: Prompt,
    ratios: Sequence[float],
    *,
    batch: int = 1,
    runs: int = 20,
    warmup: int = 3,
    new_tokens: int = 32,
    ranking: str = "last-query",
    on_run: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[list[Point], Noise]:
    """All ratios once per round, every second round backwards, after `warmup` rounds that do not count.

    R = 0 is always measured first. Decode goes on whatever tokens come.

    Raises:
        InputError: what `check` refuses.
    """
    check(runtime, prompt, ratios, batch=batch, runs=runs, warmup=warmup, new_tokens=new_tokens, ranking=ranking)
    policies = {ratio: Pruning(ratio=ratio, ranking=ranking) for ratio in dict.fromkeys((0.0, *ratios))}
    points = {ratio: Point(ratio, batch) for ratio in policies}
    total = (runs + warmup) * len(points)
    done = 0

    def round_(index: int, into: dict[float, Point]) -> None:
        nonlocal done
        for ratio in list(into) if index % 2 == 0 else reversed(list(into)):
            _once(runtime, prompt, policies[ratio], into[ratio], new_tokens)
            done += 1
            on_run(done, total)

    for index in range(warmup):
        round_(index, {ratio: Point(ratio, batch) for ratio in policies})
    noise = Noise()
    with watching(noise):
        for index in range(runs):
            round_(index, points)
    base = points[0.0].sums(DECODER)
    if runs > 1:
        low, _, high = statistics.quantiles(base, n=4, method="inclusive")
        noise.spread = (high - low) / statistics.median(base)
    return list(points.values()), noise


def _once(runtime: Runtime, prompt: Prompt, pruning: Pruning, point: Point, new_tokens: int) -> None:
    chain = runtime.chain
    started = time.perf_counter()
    request = prompt.make()
    preprocess = time.perf_counter() - started
    requests = [request] * point.batch
    caches = chain.caches(requests, [pruning] * point.batch, new_tokens)
    tokens = []
    for row in range(point.batch):
        prefill = chain.prefill(caches, row, request, pruning)
        tokens.append(int(prefill.logits.argmax()))
        if row == 0:
            point.kept = prefill.kept_tokens
            point.prefills.append({**prefill.timings, "preprocess": preprocess})
    point.kv_bytes = caches.bytes
    for _ in range(new_tokens - 1):
        started = time.perf_counter()
        logits = chain.decode(caches, tokens)
        point.steps.append(time.perf_counter() - started)
        tokens = [int(row.argmax()) for row in logits]
