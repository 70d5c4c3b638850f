"""Every ranking again, in NumPy, from what the checkpoint's own model computed: the oracle of the rank graphs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastv_trt.verify.oracle import Array, Seen

PIVOTS = 4


def scores(seen: Seen, ranking: str, positions: NDArray[np.int64]) -> Array:
    """Scores of the image tokens at `positions`, float32 [M].

    `last-query` and `received` reduce the model's attention, as the authors' code and the paper do. The others start
    from queries and keys as the projections give them, before RoPE, and from the hidden states before layer K.

    Args:
        seen: one unpruned forward, at K >= 1.
    """
    if ranking in ("last-query", "received"):
        assert seen.attention is not None
        mean: Array = seen.attention.mean(axis=0)
        received: Array = mean.mean(axis=0)
        return (mean[-1] if ranking == "last-query" else received)[positions]
    assert seen.query is not None and seen.key is not None and seen.rotated_key is not None
    if ranking == "last-query-norope":
        groups = seen.query.shape[0] // seen.key.shape[0]
        weights = np.einsum("hd,htd->ht", seen.query[:, -1], np.repeat(seen.key, groups, axis=0)) * seen.scale
        weights = np.exp(weights - weights.max(axis=1, keepdims=True))
        attended: Array = (weights / weights.sum(axis=1, keepdims=True)).mean(axis=0)
        return attended[positions]
    if ranking == "key-norm":
        norms: Array = -np.linalg.norm(seen.rotated_key, axis=-1).mean(axis=0)
        return norms[positions]
    return _dart(seen.hidden, np.abs(seen.rotated_key).sum(axis=(0, 2)), positions)


def _dart(hidden: Array, norms: Array, positions: NDArray[np.int64]) -> Array:
    text = np.setdiff1d(np.arange(len(hidden)), positions)
    own = positions[np.argsort(-norms[positions], kind="stable")][:PIVOTS]
    others = text[np.argsort(-norms[text], kind="stable")][:PIVOTS]
    unit = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
    cosine = unit @ unit[np.concatenate((own, others))].T
    result: Array = -cosine.min(axis=1)
    result[own] = 2.0
    return result[positions]
