"""A transformers text decoder, opened up: which ones are known to be right, and how their layers are traced.

The layers' own code runs. Only four things in it are replaced while tracing, so that each becomes one ONNX
operator: the attention function (through transformers' own registry), the cache, RMSNorm and RoPE.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from fastv_trt.errors import UnsupportedModelError
from fastv_trt.export import ops

# text_config.model_type; Vicuna is a llama
KNOWN = ("llama", "mistral", "qwen2", "qwen3", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text")
# The same frequencies at every length; of dynamic NTK, at every length within the context, and more is refused.
STATIC_ROPE = ("default", "linear", "llama3", "yarn", "dynamic")
_ATTENTION = "fastv_trt_onnx"


@dataclass(frozen=True)
class Decoder:
    """The parts of a text decoder that the two graphs are built from."""

    config: Any
    embed: nn.Embedding
    layers: nn.ModuleList
    norm: nn.Module
    rotary: nn.Module
    lm_head: nn.Linear

    @classmethod
    def of(cls, model: PreTrainedModel) -> Decoder:
        """Find the decoder of a vision-language model and check that it is one that exports correctly.

        Raises:
            UnsupportedModelError: the decoder type is unknown, or uses a feature that the graphs lack.
        """
        text: Any = model.get_decoder()
        check(text.config)
        head = model.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise UnsupportedModelError(f"expected a linear lm_head, found {type(head).__name__}")
        return cls(text.config, text.embed_tokens, text.layers, text.norm, text.rotary_emb, head)

    @property
    def heads(self) -> int:
        return int(self.config.num_attention_heads)

    @property
    def key_value_heads(self) -> int:
        return int(self.config.num_key_value_heads)

    @property
    def head_size(self) -> int:
        return int(getattr(self.config, "head_dim", None) or self.config.hidden_size // self.heads)

    @property
    def scale(self) -> float:
        first: Any = self.layers[0]
        return float(first.self_attn.scaling)


def check(config: Any) -> None:
    """Refuse a text config that the graphs would compute wrongly.

    Raises:
        UnsupportedModelError: names the feature.
    """
    if config.model_type not in KNOWN:
        raise UnsupportedModelError(
            f"expected a decoder of type {', '.join(KNOWN)}, found {config.model_type!r}; it is not known to be right"
        )
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    if kind not in STATIC_ROPE:
        raise UnsupportedModelError(
            f"expected RoPE of type {', '.join(STATIC_ROPE)}, found {kind!r}, whose frequencies depend on the length"
        )
    window = getattr(config, "sliding_window", None)
    sliding = getattr(config, "use_sliding_window", True) and window is not None
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    if (sliding and window < config.max_position_embeddings) or layer_types - {
        "full_attention",
        "sliding_attention",
    }:
        raise UnsupportedModelError(
            f"expected full attention in every layer, found sliding_window={window}, layer_types={sorted(layer_types)}"
        )
    if getattr(config, "attn_logit_softcapping", None) or getattr(config, "final_logit_softcapping", None):
        raise UnsupportedModelError("expected no logit softcapping, found it in the decoder's config")


@dataclass
class InPlaceCache:
    """Stands in for transformers' cache while tracing: writes in place and returns the visible slots."""

    slots: Tensor
    write_index: Tensor
    past: dict[int, tuple[Tensor, Tensor]]
    present: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        past_key, past_value = self.past[layer_idx]
        present = (
            ops.scatter_cache(past_key, key, self.write_index),
            ops.scatter_cache(past_value, value, self.write_index),
        )
        self.present[layer_idx] = present
        return ops.visible(present[0], self.slots), ops.visible(present[1], self.slots)


@dataclass
class QueryTap:
    """Keeps the rotated query states that one layer's attention was called with."""

    layer: int
    states: Tensor | None = None


def run_layers(
    decoder: Decoder,
    first: int,
    last: int,
    hidden: Tensor,
    position_ids: Tensor,
    slots: Tensor,
    write_index: Tensor,
    past: dict[int, tuple[Tensor, Tensor]],
    tap: QueryTap | None = None,
    added: Mapping[int, Tensor] = {},
) -> tuple[Tensor, dict[int, tuple[Tensor, Tensor]]]:
    """Run layers first..last-1 on `hidden` [B,S,d]; returns the new hidden states and the written caches.

    Args:
        position_ids: [B,S], or [3,B,S] with M-RoPE.
        added: DeepStack: what is added to the output of a layer, by its index.
    """
    cache = InPlaceCache(slots, write_index, past)
    mask = causal_mask(slots, write_index, hidden.shape[1], hidden.dtype)
    embeddings = decoder.rotary(hidden, position_ids)
    for index in range(first, last):
        output = decoder.layers[index](
            hidden,
            attention_mask=mask,
            position_ids=position_ids,
            cache=cache,
            use_cache=True,
            position_embeddings=embeddings,
            query_tap=tap,
        )
        hidden = output[0] if isinstance(output, tuple) else output
        hidden = hidden + added[index] if index in added else hidden
    return hidden, cache.present


def causal_mask(slots: Tensor, write_index: Tensor, queries: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [B,1,S,T]: slot j is visible to query i iff j <= write_index + i.

    The hidden value is finite (-65504 in fp16), because -inf rows become NaN in some kernels.
    """
    newest = write_index[:, None, None, None] + torch.arange(queries)[None, None, :, None]
    hidden = torch.finfo(torch.float16 if dtype == torch.float16 else torch.float32).min
    zero = torch.zeros((), dtype=dtype)
    return torch.where(slots[None, None, None, :] <= newest, zero, torch.full((), hidden, dtype=dtype))


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    query_tap: QueryTap | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """The attention function under transformers' registry contract: returns [B,S,H,D]."""
    if query_tap is not None and query_tap.layer == module.layer_idx:
        query_tap.states = query
    return ops.attention(query, key, value, attention_mask, scaling).transpose(1, 2), None


def _rotary(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *args: object, **kwargs: object
) -> tuple[Tensor, Tensor]:
    half = cos.shape[-1] // 2  # transformers repeats the halves, the operator wants them once
    cos, sin = cos[..., :half], sin[..., :half]
    return ops.rotate(query, cos, sin), ops.rotate(key, cos, sin)


def _rms_norm(module: Any) -> Any:
    return lambda hidden: ops.rms_norm(hidden, module.weight, module.variance_epsilon)


def static_rotary(decoder: Decoder) -> nn.Module:
    """The decoder's RoPE without the look at the length that dynamic NTK takes, which cannot be traced.

    Within the context it changes nothing; `check` and the runtime keep prompts within it. Weights are shared.
    """
    rotary: Any = copy(decoder.rotary)
    if getattr(rotary, "rope_type", None) == "dynamic":
        rotary.rope_type = "default"
    result: nn.Module = rotary
    return result


@contextmanager
def tracing(decoder: Decoder) -> Iterator[None]:
    """While active, the decoder's layers trace into the operators of `ops`. Restores everything after."""
    ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attention)
    with ExitStack() as stack:
        stack.callback(setattr, decoder.config, "_attn_implementation", decoder.config._attn_implementation)
        decoder.config._attn_implementation = _ATTENTION
        home = sys.modules[type(decoder.layers[0].self_attn).__module__]
        stack.enter_context(mock.patch.object(home, "apply_rotary_pos_emb", _rotary))
        if getattr(decoder.rotary, "rope_type", None) == "dynamic":  # no look at the length, which cannot be traced
            stack.enter_context(mock.patch.object(decoder.rotary, "rope_type", "default"))
        for norm in (decoder.norm, *decoder.layers.modules()):
            if type(norm).__name__.endswith("RMSNorm"):
                stack.enter_context(mock.patch.object(norm, "forward", _rms_norm(norm)))
        yield
