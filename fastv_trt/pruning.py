"""The FastV policy as plain values and NumPy: how many image tokens to keep, and which.

Source: FastV (arXiv 2403.06764, section 4.1) and the authors' implementation. Where the two differ
(the ranking) both are offered: `last-query` is the authors' code, `received` the paper's sentence.
Nothing here knows about models, graphs or sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastv_trt.errors import InputError

ATTENTION_RANKINGS = ("last-query", "received")
"""Rankings computed by a rank graph from layer K-1's queries and keys. They need K >= 1."""

FREE_RANKINGS = ("random", "uniform", "external")
"""Rankings that need no attention, so every bundle offers them, K = 0 included."""

RANKINGS = ATTENTION_RANKINGS + FREE_RANKINGS

Scope = Literal["all", "image", "frame"]
SCOPES: tuple[Scope, ...] = ("all", "image", "frame")


@dataclass(frozen=True)
class Pruning:
    """How one request is pruned.

    Args:
        ratio: R, the share of image tokens to remove, in [0, 1]. 0 keeps all, 1 drops all.
        keep: an absolute number of image tokens to keep instead of a ratio. More than there are keeps all.
        ranking: one of `RANKINGS`.
        scope: "all" ranks the tokens of all images in one pool (the authors' advice); "image" gives every
            image its own share, so that none can be starved; "frame" does so for every frame of a clip.
        seed: of the `random` ranking.
        required: if true, a request in which nothing can be pruned is an error instead of a note.

    Raises:
        InputError: a value is out of range, or both `ratio` and `keep` are given.
    """

    ratio: float | None = None
    keep: int | None = None
    ranking: str = "last-query"
    scope: Scope = "all"
    seed: int = 0
    required: bool = False

    def __post_init__(self) -> None:
        if self.ratio is not None and self.keep is not None:
            raise InputError("expected a pruning ratio or a keep count, found both; give one of them")
        if self.ratio is not None and not _is_number(self.ratio, float):
            raise InputError(f"expected a pruning ratio in [0, 1], found {self.ratio!r}")
        if self.keep is not None and not _is_number(self.keep, int):
            raise InputError(f"expected a keep count that is a whole number, found {self.keep!r}")
        if not _is_number(self.seed, int):
            raise InputError(f"expected a seed that is a whole number, found {self.seed!r}")
        if self.ratio is not None and not 0.0 <= self.ratio <= 1.0:  # NaN fails this too
            raise InputError(
                f"expected a pruning ratio in [0, 1], found {self.ratio}; it is the share of image tokens to remove"
            )
        if self.keep is not None and self.keep < 0:
            raise InputError(f"expected a keep count of 0 or more, found {self.keep}")
        if self.ranking not in RANKINGS:
            raise InputError(f"expected a ranking of {', '.join(RANKINGS)}, found {self.ranking!r}")
        if self.scope not in SCOPES:
            raise InputError(f"expected scope {', '.join(SCOPES)}, found {self.scope!r}")
        if not 0 <= self.seed < 2**64:
            raise InputError(f"expected a seed in [0, 2^64), found {self.seed}")

    @property
    def asked(self) -> bool:
        """Whether this policy can remove anything at all."""
        return self.keep is not None or bool(self.ratio)

    def keep_count(self, tokens: int) -> int:
        """Number of image tokens kept out of `tokens`: round(M * (1 - R)) with Python's rounding.

        Source: the authors' llava-hf fork, modeling_llama.py line 1048.
        """
        if self.keep is not None:
            return min(self.keep, tokens)
        return round(tokens * (1.0 - (self.ratio or 0.0)))

    def kept_tokens(self, image_sizes: Sequence[int]) -> int:
        """Image tokens that live on, out of images (or frames) of these sizes, under this policy's scope."""
        return self.keep_count(sum(image_sizes)) if self.scope == "all" else sum(self.quotas(image_sizes))

    def quotas(self, image_sizes: Sequence[int]) -> list[int]:
        """Kept tokens per image, or per frame, for the scope of that name.

        An absolute `keep` is shared out in proportion to size.

        Args:
            image_sizes: number of tokens of each image.
        """
        if self.keep is None:
            return [self.keep_count(size) for size in image_sizes]
        total, keep = sum(image_sizes), self.keep_count(sum(image_sizes))
        shares = [keep * size // total if total else 0 for size in image_sizes]
        remainders = [keep * size % total if total else 0 for size in image_sizes]
        # Largest remainder first; the earlier image wins a tie.
        order = sorted(range(len(image_sizes)), key=lambda i: (-remainders[i], i))
        for i in order[: keep - sum(shares)]:
            shares[i] += 1
        return shares


def _is_number(value: object, kind: type) -> bool:
    """Whether a value is an int (or, for float, any real number), NumPy's included; a bool is neither."""
    if isinstance(value, (bool, np.bool_)):
        return False
    return isinstance(value, (int, np.integer)) or (kind is float and isinstance(value, (float, np.floating)))


def image_positions(input_ids: ArrayLike, image_token_ids: Sequence[int]) -> NDArray[np.int64]:
    """Positions of the image tokens in one prompt, found from their token id, never from an offset.

    Args:
        input_ids: int [N].
        image_token_ids: the ids that stand for an image token.

    Returns:
        Ascending positions, int64 [M].
    """
    return np.flatnonzero(np.isin(np.asarray(input_ids), list(image_token_ids))).astype(np.int64)


def top(scores: ArrayLike, count: int) -> NDArray[np.int64]:
    """Indices of the `count` highest scores in ascending order of index; the lowest index wins a tie.

    Raises:
        InputError: a score is not a number.
    """
    values = np.asarray(scores, dtype=np.float32)
    if np.isnan(values).any():
        raise InputError(f"expected ranking scores that are numbers, found {np.isnan(values).sum()} NaN")
    order = np.argsort(-values, kind="stable")
    return np.sort(order[:count]).astype(np.int64)


def random_scores(tokens: int, seed: int) -> NDArray[np.float32]:
    """Pseudo-random scores in [0, 1) that any language can reproduce: SplitMix64 of (seed, index).

    The upper 24 bits of the i-th output of SplitMix64 (Steele, Lea, Flood 2014) seeded with `seed`, divided
    by 2^24, so that every value is exact in float32.
    """
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, tokens + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return ((z >> np.uint64(40)).astype(np.float64) / 2.0**24).astype(np.float32)


def uniform_indices(tokens: int, count: int) -> NDArray[np.int64]:
    """`count` evenly spread indices out of `tokens`: the middle of each of `count` equal parts."""
    return ((2 * np.arange(count, dtype=np.int64) + 1) * tokens) // (2 * max(count, 1))


def select(
    pruning: Pruning,
    length: int,
    positions: ArrayLike,
    image_sizes: Sequence[int],
    scores: ArrayLike | None = None,
) -> NDArray[np.int64]:
    """Choose the tokens of one prompt that live on after layer K.

    Text is never dropped and the original order is kept, so the result is also the kept tokens' original
    positions.

    Args:
        pruning: the policy.
        length: N, tokens of this prompt (or of this turn).
        positions: ascending positions of the image tokens, int [M].
        image_sizes: image tokens of each image (of each frame for scope "frame"), in order; they sum to M.
        scores: one score per image token, [M], for rankings that are not random or uniform.

    Returns:
        keep_indices, ascending, int64 [N - M + kept].

    Raises:
        InputError: sizes do not fit together, or scores are missing or NaN.
    """
    spots = np.asarray(positions, dtype=np.int64)
    if sum(image_sizes) != len(spots):
        raise InputError(f"expected image sizes that sum to {len(spots)} tokens, found {list(image_sizes)}")
    values = _scores(pruning, len(spots), scores)
    pools = [len(spots)] if pruning.scope == "all" else list(image_sizes)
    counts = [pruning.keep_count(len(spots))] if pruning.scope == "all" else pruning.quotas(image_sizes)

    kept = np.ones(length, dtype=bool)
    kept[spots] = False
    start = 0
    for pool, count in zip(pools, counts, strict=True):
        chosen = uniform_indices(pool, count) if values is None else top(values[start : start + pool], count)
        kept[spots[start + chosen]] = True
        start += pool
    return np.flatnonzero(kept).astype(np.int64)


def _scores(pruning: Pruning, tokens: int, scores: ArrayLike | None) -> NDArray[np.float32] | None:
    """One score per image token, or None for `uniform`, which has no scores."""
    if pruning.ranking == "uniform":
        return None
    if pruning.ranking == "random":
        return random_scores(tokens, pruning.seed)
    if scores is None:
        raise InputError(f"expected one score per image token for ranking {pruning.ranking!r}, found none")
    values = np.asarray(scores, dtype=np.float32)
    if values.shape != (tokens,):
        raise InputError(f"expected scores of shape [{tokens}], one per image token, found {list(values.shape)}")
    return values
