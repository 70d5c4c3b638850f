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

ATTENTION_RANKINGS = ("last-query", "received", "last-query-norope", "key-norm", "dart")
"""Rankings computed by a rank graph from layer K-1's queries and keys. They need K >= 1."""

FREE_RANKINGS = ("random", "uniform", "diversity", "external")
"""Rankings that need no attention, so every bundle offers them, K = 0 included."""

RANKINGS = ATTENTION_RANKINGS + FREE_RANKINGS

MASS_RANKINGS = ("last-query", "received", "last-query-norope", "external")
"""Rankings whose scores are shares of attention, so that a share of their sum means something."""

Scope = Literal["all", "image", "frame"]
SCOPES: tuple[Scope, ...] = ("all", "image", "frame")


@dataclass(frozen=True)
class Pruning:
    """How one request is pruned.

    Args:
        ratio: R, the share of image tokens to remove, in [0, 1]. 0 keeps all, 1 drops all.
        keep: an absolute number of image tokens to keep instead of a ratio. More than there are keeps all.
        mass: adaptive instead: keep the fewest image tokens whose scores reach this share of all image tokens'
            scores, in (0, 1]. For rankings of `MASS_RANKINGS`.
        min_keep, max_keep: bounds of what `mass` keeps, in image tokens; `max_keep` None is all there are. Caches
            are sized to `max_keep`, because they are allocated before anything is ranked.
        ranking: one of `RANKINGS`.
        scope: "all" ranks the tokens of all images in one pool (the authors' advice); "image" gives every
            image its own share, so that none can be starved; "frame" does so for every frame of a clip.
        seed: of the `random` ranking.
        required: if true, a request in which nothing can be pruned is an error instead of a note.

    Raises:
        InputError: a value is out of range, or more than one of `ratio`, `keep` and `mass` is given.
    """

    ratio: float | None = None
    keep: int | None = None
    ranking: str = "last-query"
    scope: Scope = "all"
    seed: int = 0
    required: bool = False
    mass: float | None = None
    min_keep: int = 0
    max_keep: int | None = None

    def __post_init__(self) -> None:
        if self.ratio is not None and self.keep is not None:
            raise InputError("expected a pruning ratio or a keep count, found both; give one of them")
        self._check_mass()
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

    def _check_mass(self) -> None:
        if self.mass is None:
            if self.min_keep != 0 or self.max_keep is not None:
                raise InputError("expected min_keep and max_keep with a mass, found them without; use keep or ratio")
            return
        if self.ratio is not None or self.keep is not None:
            raise InputError("expected a mass, a ratio or a keep count, found two of them; give one")
        if not _is_number(self.mass, float) or not 0.0 < self.mass <= 1.0:
            raise InputError(f"expected a mass in (0, 1], found {self.mass!r}; it is a share of the image attention")
        most = self.min_keep if self.max_keep is None else self.max_keep
        if not _is_number(self.min_keep, int) or not _is_number(most, int) or not 0 <= self.min_keep <= most:
            raise InputError(
                f"expected whole numbers 0 <= min_keep <= max_keep, found {self.min_keep}, {self.max_keep}"
            )
        if self.ranking not in MASS_RANKINGS:
            raise InputError(
                f"expected a ranking by attention ({', '.join(MASS_RANKINGS)}) with a mass, found {self.ranking!r}"
            )

    @property
    def asked(self) -> bool:
        """Whether this policy can remove anything at all."""
        return self.keep is not None or self.mass is not None or bool(self.ratio)

    def keep_count(self, tokens: int) -> int:
        """Number of image tokens kept out of `tokens`: round(M * (1 - R)) with Python's rounding.

        With a mass it is the most that may be kept: how many are depends on the scores.
        Source: the authors' llava-hf fork, modeling_llama.py line 1048.
        """
        if self.mass is not None:
            return tokens if self.max_keep is None else min(self.max_keep, tokens)
        if self.keep is not None:
            return min(self.keep, tokens)
        return round(tokens * (1.0 - (self.ratio or 0.0)))

    def kept_tokens(self, image_sizes: Sequence[int]) -> int:
        """Image tokens that live on (with a mass: at most), out of images (or frames) of these sizes, by the scope."""
        return self.keep_count(sum(image_sizes)) if self.scope == "all" else sum(self.quotas(image_sizes))

    def quotas(self, image_sizes: Sequence[int]) -> list[int]:
        """Kept tokens per image, or per frame, for the scope of that name.

        An absolute `keep` is shared out in proportion to size.

        Args:
            image_sizes: number of tokens of each image.
        """
        if self.keep is None and self.max_keep is None:
            return [self.keep_count(size) for size in image_sizes]
        return self._shared(self.keep_count(sum(image_sizes)), image_sizes)

    @staticmethod
    def _shared(keep: int, image_sizes: Sequence[int]) -> list[int]:
        total = sum(image_sizes)
        shares = [keep * size // total if total else 0 for size in image_sizes]
        remainders = [keep * size % total if total else 0 for size in image_sizes]
        # Largest remainder first; the earlier image wins a tie.
        order = sorted(range(len(image_sizes)), key=lambda i: (-remainders[i], i))
        for i in order[: keep - sum(shares)]:
            shares[i] += 1
        return shares

    def adapted(self, scores: NDArray[np.float32], pools: Sequence[int], most: Sequence[int]) -> list[int]:
        """How many tokens `mass` keeps of each pool, at most `most`; `min_keep` is shared out like a keep count.

        Args:
            scores: of all pools' tokens in order, [M].
        """
        assert self.mass is not None
        least = self._shared(min(self.min_keep, sum(most)), pools)
        ends = np.cumsum(pools)
        parts = [scores[end - size : end] for end, size in zip(ends, pools, strict=True)]
        return [mass_count(part, self.mass, low, high) for part, low, high in zip(parts, least, most, strict=True)]


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


def diversity_scores(features: ArrayLike) -> NDArray[np.float32]:
    """Scores of a greedy max-min choice: every next token is the one farthest from all that were chosen before.

    Distance is 1 - cosine. The first token is the one whose nearest neighbour is farthest; the lowest index wins a
    tie. Choices are nested, so the score of the i-th chosen token is M - i and one order serves every keep count.
    Source: DivPrune (arXiv 2503.02175, section 3.3), which applies it to the projector's output; here it sees the
    hidden states before layer K.

    Args:
        features: one row per image token, [M, d].

    Returns:
        float32 [M]. Time and memory grow with M squared.
    """
    rows = np.asarray(features, dtype=np.float32)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
    distance = 1.0 - rows @ rows.T
    np.fill_diagonal(distance, np.inf)
    nearest = distance.min(axis=1, initial=np.inf)  # to what is chosen; at first to any other token
    np.fill_diagonal(distance, -np.inf)
    scores = np.zeros(len(rows), dtype=np.float32)
    for rank in range(len(rows)):
        chosen = int(nearest.argmax())
        scores[chosen] = len(rows) - rank
        if rank == 0:
            nearest = distance[chosen].copy()
        np.minimum(nearest, distance[chosen], out=nearest)  # -inf for what is chosen
    return scores


def mass_count(scores: ArrayLike, mass: float, least: int, most: int) -> int:
    """The fewest tokens, best first, whose scores reach the share `mass` of all scores; within `least`..`most`.

    Sums are sequential and in float64, so that any language gets the same count.

    Raises:
        InputError: a score is negative or not a number: then a share of the sum means nothing.
    """
    values = np.asarray(scores, dtype=np.float32).astype(np.float64)
    if len(values) and not values.min() >= 0:
        raise InputError("expected scores of 0 or more with a mass, found a negative one or NaN; use a ratio")
    reached = np.cumsum(np.sort(values)[::-1])
    count = int(np.searchsorted(reached, mass * reached[-1])) + 1 if len(values) and reached[-1] > 0 else 0
    return min(max(count, min(least, len(values))), most)


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
    if pruning.mass is not None and values is not None:
        counts = pruning.adapted(values, pools, counts)

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
