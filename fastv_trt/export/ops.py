"""The ONNX operators that the graphs are made of, as functions on torch tensors.

Each emits exactly one standard operator when it is traced by the exporter. Run eagerly, `torch.onnx.ops`
returns placeholders, so these are for tracing only.
"""

from __future__ import annotations

import torch
from torch import Tensor

OPSET = 24  # the first opset with TensorScatter


def scatter_cache(cache: Tensor, update: Tensor, write_index: Tensor) -> Tensor:
    """Write `update` [B,G,S,D] into `cache` [B,G,C,D] at `write_index` [B]: TensorScatter, linear mode.

    Bound to one buffer, past and present are the same memory and nothing is copied. A write beyond C is
    undefined; the runtime checks lengths before.
    """
    present: Tensor = torch.onnx.ops.symbolic(
        "TensorScatter",
        (cache, update, write_index),
        attrs={"axis": -2, "mode": "linear"},
        dtype=cache.dtype,
        shape=cache.shape,
        version=OPSET,
    )
    return present


def visible(cache: Tensor, slots: Tensor) -> Tensor:
    """The first T slots of `cache` [B,G,C,D], with T the length of `slots`: [B,G,T,D]."""
    batch, heads, _, size = cache.shape
    count = torch.onnx.ops.symbolic("Shape", (slots,), dtype=torch.int64, shape=(1,), version=OPSET)
    first: Tensor = torch.onnx.ops.symbolic(
        "Slice",
        (cache, torch.zeros(1, dtype=torch.int64), count, torch.full((1,), 2, dtype=torch.int64)),
        dtype=cache.dtype,
        shape=(batch, heads, slots.shape[0], size),
        version=OPSET,
    )
    return first


def gather_rows(hidden: Tensor, indices: Tensor) -> Tensor:
    """Rows `indices` [B,n] of `hidden` [B,S,d], per batch row: [B,n,d]."""
    batch, count = indices.shape
    rows: Tensor = torch.onnx.ops.symbolic(
        "GatherND",
        (hidden, indices[..., None]),
        attrs={"batch_dims": 1},
        dtype=hidden.dtype,
        shape=(batch, count, hidden.shape[-1]),
        version=OPSET,
    )
    return rows


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attention of `query` [B,H,S,D] over `key`, `value` [B,G,T,D] with an additive `mask` [B,1,S,T].

    An additive mask because TensorRT's parser silently ignores is_causal's alignment and
    nonpad_kv_seqlen beside a cache.
    """
    output: Tensor = torch.onnx.ops.symbolic(
        "Attention",
        (query, key, value, mask),
        attrs={"scale": scale},
        dtype=query.dtype,
        shape=query.shape,
        version=OPSET,
    )
    return output


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNormalization over the last axis, computed in fp32 as transformers does."""
    output: Tensor = torch.onnx.ops.symbolic(
        "RMSNormalization",
        (hidden, weight),
        attrs={"axis": -1, "epsilon": eps, "stash_type": 1},
        dtype=hidden.dtype,
        shape=hidden.shape,
        version=OPSET,
    )
    return output


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RotaryEmbedding of `states` [B,H,S,D] with `cos`, `sin` [B,S,D/2], halves not interleaved."""
    output: Tensor = torch.onnx.ops.symbolic(
        "RotaryEmbedding",
        (states, cos, sin),
        attrs={"interleaved": 0},
        dtype=states.dtype,
        shape=states.shape,
        version=OPSET,
    )
    return output
