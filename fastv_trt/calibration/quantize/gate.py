"""Is the quantized model still good enough? Both models answer the same samples, unpruned and pruned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fastv_trt.bundle import Bundle
from fastv_trt.calibration.budget import Budget, Outcome
from fastv_trt.calibration.measure import Answered, Bench
from fastv_trt.calibration.metrics import Metric, kl_divergence
from fastv_trt.calibration.samples import Sample, Samples
from fastv_trt.calibration.statistics import Interval, wilson
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Runtime


@dataclass(frozen=True)
class GateRow:
    """One policy.

    Attributes:
        plain, quantized: accuracy in percent with bounds; None without answers.
        agreement: percent of answers equal to the floating-point model's at the same policy, with bounds.
        kl: mean KL from the floating-point model, first token, nats.
        measured: the budget's measure against the floating-point model.
    """

    policy: Pruning
    plain: Interval | None
    quantized: Interval | None
    agreement: Interval
    kl: float
    measured: Interval
    inside: bool


def gate(
    plain: Bundle,
    quantized: Bundle,
    samples: Samples,
    policies: Sequence[Pruning],
    metric: Metric | None,
    budget: Budget,
    confidence: float,
    new_tokens: int,
    *,
    threads: int | None = None,
    on_sample: Callable[[int, int], None] = lambda done, total: None,
) -> list[GateRow]:
    """Measure both bundles. Inside the budget is decided by the estimate."""
    benches = [Bench(Runtime.load(bundle, threads=threads), metric, new_tokens) for bundle in (plain, quantized)]
    outcomes: list[list[tuple[Outcome, Outcome]]] = [[] for _ in policies]
    for index, sample in enumerate(samples.items):
        on_sample(index, len(samples.items))
        for policy, found in zip(policies, outcomes, strict=True):
            found.append(_pair(benches, sample, policy))
    return [_row(policy, found, budget, confidence) for policy, found in zip(policies, outcomes, strict=True)]


def _pair(benches: Sequence[Bench], sample: Sample, policy: Pruning) -> tuple[Outcome, Outcome]:
    first = _answer(benches[0], sample, policy)
    free = benches[1].metric is not None
    second = _answer(benches[1], sample, policy, None if free else first.tokens)
    forced = None
    if not free:
        forced = float(np.mean([kl_divergence(a, b) for a, b in zip(first.logits, second.logits, strict=True)]))
    same = Outcome(_quality(benches[0], first, sample), True, 0.0, None if free else 0.0, 1.0, 1.0)
    return same, Outcome(
        quality=_quality(benches[1], second, sample),
        match=first.tokens == second.tokens,
        kl=kl_divergence(first.logits[0], second.logits[0]),
        kl_forced=forced,
        kept=1.0,
        ttft=1.0,
    )


def _answer(bench: Bench, sample: Sample, policy: Pruning, forced: Sequence[int] | None = None) -> Answered:
    chain, request = bench.runtime.chain, bench.request(sample)
    caches = chain.caches([request], [policy], bench.new_tokens)
    return bench.say(caches, chain.prefill(caches, 0, request, policy), forced)


def _quality(bench: Bench, said: Answered, sample: Sample) -> float | None:
    if bench.metric is None:
        return None
    return bench.metric(bench.runtime.processor.decode(said.tokens).strip(), sample.answers)


def _row(policy: Pruning, pairs: list[tuple[Outcome, Outcome]], budget: Budget, confidence: float) -> GateRow:
    plain, own = [a for a, _ in pairs], [b for _, b in pairs]
    measured = budget.interval(own, plain, confidence)

    def accuracy(outcomes: list[Outcome]) -> Interval | None:
        values = [o.quality for o in outcomes if o.quality is not None]
        return wilson(values, confidence).percent if values else None

    return GateRow(
        policy=policy,
        plain=accuracy(plain),
        quantized=accuracy(own),
        agreement=wilson([float(o.match) for o in own], confidence).percent,
        kl=float(np.mean([o.kl for o in own])),
        measured=measured,
        inside=budget.kept(measured, "estimate"),
    )
