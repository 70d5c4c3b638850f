"""Prefill one by one, then decode together: the generation loop over a batch of requests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fastv_trt.errors import InputError
from fastv_trt.pruning import Pruning
from fastv_trt.runtime.caches import Caches
from fastv_trt.runtime.chain import Chain, Prefill, Request
from fastv_trt.runtime.sampling import Sampling


@dataclass(frozen=True)
class Limits:
    """When a row ends.

    Attributes:
        new_tokens: at most this many, 1 or more.
        stop: token ids that end a row; None takes the model's own, () never stops early.
    """

    new_tokens: int = 128
    stop: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.new_tokens < 1:
            raise InputError(f"expected 1 or more new tokens, found {self.new_tokens}")


@dataclass
class Generation:
    """One batch of requests on its way. Iterate to get (row, token) pairs as they come.

    Attributes:
        caches: of the batch; pass them to a later turn.
        prefills: one per row, once it has run.
        tokens: generated ids per row, the stop token included.
        decode_seconds: all decode steps together, for all rows.
        decode_steps: their number.
    """

    chain: Chain
    requests: Sequence[Request]
    prunings: Sequence[Pruning]
    limits: Limits
    sampling: Sampling
    caches: Caches
    prefills: list[Prefill] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    decode_seconds: float = 0.0
    decode_steps: int = 0

    @classmethod
    def start(
        cls,
        chain: Chain,
        requests: Sequence[Request],
        pruning: Pruning | Sequence[Pruning],
        limits: Limits,
        sampling: Sampling,
        caches: Caches | None = None,
    ) -> Generation:
        """Prepare a batch: check lengths and allocate caches, or grow the ones of an earlier turn.

        Args:
            pruning: one policy for all rows, or one per row.
            caches: of an earlier turn with as many rows; None starts afresh.

        Raises:
            InputError: no requests, counts that do not match, or prompts beyond the context.
        """
        if not requests:
            raise InputError("expected 1 or more requests, found none")
        prunings = [pruning] * len(requests) if isinstance(pruning, Pruning) else list(pruning)
        if len(prunings) != len(requests):
            raise InputError(f"expected one pruning policy per request ({len(requests)}), found {len(prunings)}")
        if caches is None:
            caches = chain.caches(requests, prunings, limits.new_tokens)
        else:
            if len(caches.rows) != len(requests):
                raise InputError(f"expected one request per cache row ({len(caches.rows)}), found {len(requests)}")
            for request, state in zip(requests, caches.rows, strict=True):
                chain.check_length(state.position + len(request.input_ids), limits.new_tokens)
            added = [len(r.input_ids) for r in requests]
            kept = [n - chain.dropped(r, p) for n, r, p in zip(added, requests, prunings, strict=True)]
            caches.reserve(
                max(s.prefix_length + n for s, n in zip(caches.rows, added, strict=True)) + limits.new_tokens,
                max(s.suffix_length + n for s, n in zip(caches.rows, kept, strict=True)) + limits.new_tokens,
            )
        return cls(chain, requests, prunings, limits, sampling, caches)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        stop = self.chain.manifest.tokens.eos if self.limits.stop is None else self.limits.stop
        draws = self.sampling.generators(len(self.requests))
        for row, (request, pruning) in enumerate(zip(self.requests, self.prunings, strict=True)):
            self.prefills.append(self.chain.prefill(self.caches, row, request, pruning))
            token = self.sampling.pick(self.prefills[row].logits, draws[row])
            self.tokens.append([token])
            yield row, token
        for _ in range(self.limits.new_tokens - 1):
            live = [tokens[-1] not in stop for tokens in self.tokens]
            if not any(live):
                return
            started = time.perf_counter()
            logits = self.chain.decode(self.caches, [tokens[-1] for tokens in self.tokens], live)
            self.decode_seconds += time.perf_counter() - started
            self.decode_steps += 1
            for row, alive in enumerate(live):
                if alive:
                    self.tokens[row].append(self.sampling.pick(logits[row], draws[row]))
                    yield row, self.tokens[row][-1]

    def finish(self) -> Generation:
        """Run to the end."""
        for _ in self:
            pass
        return self
