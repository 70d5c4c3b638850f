"""The big graphs of the contract (docs/bundle.md) as torch modules, ready to be traced. Rankings: `ranks.py`.

Shapes: B batch, S query tokens of this call, M image tokens, n kept tokens, C cache capacity, T visible
cache slots, H query heads, G key/value heads, D head size, d hidden size, V vocabulary, F layers of DeepStack.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fastv_trt.bundle import TensorRecord
from fastv_trt.export import ops
from fastv_trt.export.decoder import Decoder, QueryTap, run_layers
from fastv_trt.families import Family

MEANING = {
    "input_ids": "token ids",
    "image_features": "one row per image token of this call, in order; M is 0 without images",
    "position_ids": "position of each token in the unpruned sequence; with M-RoPE its time, row and column",
    "deepstack_features": "what is added to each image token's row after layers 0, 1, ...",
    "deepstack_rows": "row of deepstack_features for each kept token; -1 for none",
    "slots": "0, 1, ..., T-1; only its length T, the number of visible cache slots, carries meaning",
    "write_index": "cache slot of this call's first token, per row",
    "hidden_states": "activations between layer K-1 and layer K",
    "query_states": "queries of layer K-1 after RoPE",
    "keep_indices": "rows of hidden_states that live on, ascending",
    "key": "key cache of layer K-1, after RoPE",
    "candidates": "1 where a visible slot holds an image token that is being ranked, else 0",
    "scores": "of each visible slot; higher is more important",
    "logits": "of the last kept token",
}


@dataclass(frozen=True)
class Argument:
    """One example input and its axes: a number is static, a name is dynamic."""

    name: str
    example: Tensor
    axes: tuple[int | str, ...]

    def record(self) -> TensorRecord:
        return tensor_record(self.name, self.example.dtype, self.axes)


@dataclass(frozen=True)
class Traceable:
    """A module with example arguments and the records of its results."""

    module: nn.Module
    arguments: tuple[Argument, ...]
    results: tuple[TensorRecord, ...]
    decoder: Decoder | None = field(default=None)
    variadic: int = 0  # arguments at the end that the module takes as one *args


def tensor_record(name: str, dtype: torch.dtype, axes: tuple[int | str, ...]) -> TensorRecord:
    if name.startswith(("past_key_values.", "present.")):
        meaning = "cache of one layer, written in place: bind past and present to one buffer"
    else:
        meaning = MEANING.get(name, "output of the image processor")
    return TensorRecord(name=name, dtype=str(dtype).removeprefix("torch."), shape=axes, meaning=meaning)


class Vision(nn.Module):
    """A family's vision part: the image processor's outputs -> image_features [M,d]."""

    def __init__(self, family: Family, model: Any) -> None:
        super().__init__()
        self.model, self.features = model, family.features

    def forward(self, *inputs: Tensor) -> Any:
        return self.features(self.model, *inputs)


class Prefix(nn.Module):
    """Embedding, image merge and layers 0..K-1 over every token."""

    def __init__(self, decoder: Decoder, k: int, image_token_ids: tuple[int, ...], deepstack: int = 0) -> None:
        super().__init__()
        self.embed, self.layers, self.rotary = decoder.embed, decoder.layers[:k], decoder.rotary
        self.decoder, self.k, self.image_token_ids, self.deepstack = decoder, k, image_token_ids, deepstack

    def merge(self, input_ids: Tensor, image_features: Tensor) -> tuple[Tensor, Tensor]:
        """Embeds text and puts the i-th feature row where the i-th image token stands: [B,S,d], and each i [B,S].

        i counts from 1; where there is no feature it is 0.

        An image token without a feature row is text: a model may generate one, and a decode step has no images.
        """
        is_image = input_ids == self.image_token_ids[0]
        for other in self.image_token_ids[1:]:
            is_image = is_image | (input_ids == other)
        rows = torch.cumsum(is_image.flatten().to(torch.int64), dim=0).reshape(input_ids.shape)
        is_image = is_image & (rows <= image_features.shape[0])
        text = self.embed(torch.where(is_image, torch.zeros_like(input_ids), input_ids))
        # Row 0 is a spare, so that a call without images gathers from something.
        spare = torch.zeros((1, text.shape[-1]), dtype=text.dtype)
        rows = torch.where(is_image, rows, torch.zeros_like(rows))
        image = nn.functional.embedding(rows, torch.cat((spare, image_features)))
        return torch.where(is_image[..., None], image, text), rows

    def forward(
        self,
        input_ids: Tensor,
        image_features: Tensor,
        position_ids: Tensor,
        slots: Tensor,
        write_index: Tensor,
        *rest: Tensor,
    ) -> tuple[Tensor, ...]:
        tap = QueryTap(self.k - 1)
        hidden, rows = self.merge(input_ids, image_features)
        added, caches = (deepstack(rest[0], rows, 0, self.k), rest[1:]) if self.deepstack else ({}, rest)
        hidden, present = run_layers(
            self.decoder, 0, self.k, hidden, position_ids, slots, write_index, pair(0, caches), tap, added
        )
        assert tap.states is not None
        return (hidden, tap.states, *flat(present))


class Embedding(Prefix):
    """The prefix of K = 0: embedding and image merge, no layers."""

    def forward(self, input_ids: Tensor, image_features: Tensor) -> Tensor:  # type: ignore[override]
        return self.merge(input_ids, image_features)[0]


class Suffix(nn.Module):
    """Layers K..L-1 over the kept tokens, final norm, and the last token's logits."""

    def __init__(self, decoder: Decoder, k: int, deepstack: int = 0) -> None:
        super().__init__()
        self.layers, self.rotary = decoder.layers[k:], decoder.rotary
        self.norm, self.lm_head = decoder.norm, decoder.lm_head
        self.decoder, self.k, self.deepstack = decoder, k, deepstack

    def forward(
        self,
        hidden_states: Tensor,
        keep_indices: Tensor,
        position_ids: Tensor,
        slots: Tensor,
        write_index: Tensor,
        *rest: Tensor,
    ) -> tuple[Tensor, ...]:
        kept = ops.gather_rows(hidden_states, keep_indices)
        last = len(self.decoder.layers)
        added, caches = (deepstack(rest[0], rest[1] + 1, self.k, last), rest[2:]) if self.deepstack else ({}, rest)
        hidden, present = run_layers(
            self.decoder, self.k, last, kept, position_ids, slots, write_index, pair(self.k, caches), None, added
        )
        logits = self.lm_head(self.norm(hidden[:, -1:]))
        return (logits.to(torch.float32), *flat(present))


def deepstack(features: Tensor, rows: Tensor, first: int, last: int) -> dict[int, Tensor]:
    """What layers `first`..`last`-1 add to their outputs: layer -> [B,S,d], of `features` [F,M,d] and `rows` [B,S].

    Rows count from 1; row 0 is zero, for tokens that are text.
    """
    spare = torch.zeros((1, features.shape[-1]), dtype=features.dtype)
    layers = range(first, min(last, features.shape[0]))
    return {i: nn.functional.embedding(rows, torch.cat((spare, features[i]))) for i in layers}


def pair(first: int, caches: tuple[Tensor, ...]) -> dict[int, tuple[Tensor, Tensor]]:
    return {first + i: (caches[2 * i], caches[2 * i + 1]) for i in range(len(caches) // 2)}


def flat(present: dict[int, tuple[Tensor, Tensor]]) -> list[Tensor]:
    return [tensor for layer in sorted(present) for tensor in present[layer]]


# Example sizes differ from each other and from 0 and 1, so that the tracer keeps every axis apart.
B, S, N, T, C, M = 2, 7, 5, 9, 13, 3


def _caches(decoder: Decoder, layers: range, dtype: torch.dtype) -> tuple[Argument, ...]:
    axes = ("B", decoder.key_value_heads, "C", decoder.head_size)
    example = torch.zeros((B, decoder.key_value_heads, C, decoder.head_size), dtype=dtype)
    return tuple(
        Argument(f"past_key_values.{i}.{part}", example.clone(), axes) for i in layers for part in ("key", "value")
    )


def _presents(caches: tuple[Argument, ...]) -> tuple[TensorRecord, ...]:
    return tuple(tensor_record(c.name.replace("past_key_values", "present"), c.example.dtype, c.axes) for c in caches)


def _steps(length: int, axis: str, mrope: bool = False) -> tuple[Argument, ...]:
    positions = torch.arange(length).repeat(B, 1)
    return (
        Argument("position_ids", positions.repeat(3, 1, 1), (3, "B", axis))
        if mrope
        else Argument("position_ids", positions, ("B", axis)),
        Argument("slots", torch.arange(T), ("T",)),
        Argument("write_index", torch.zeros(B, dtype=torch.int64), ("B",)),
    )


def _deepstack(count: int, size: int, dtype: torch.dtype) -> Argument:
    return Argument("deepstack_features", torch.zeros((count, M, size), dtype=dtype), (count, "M", size))


def vision(family: Family, config: Any, model: Any) -> Traceable:
    """The vision graph of a model."""
    family.prepare(model)
    dtype, size, extra = model.dtype, int(config.get_text_config().hidden_size), family.deepstack(config)
    inputs = family.inputs(config)
    names = dict.fromkeys(axis for i in inputs for axis in i.axes if isinstance(axis, str))
    lengths = {name: 3 + 2 * index for index, name in enumerate(names)}
    arguments = tuple(
        Argument(
            i.name,
            torch.zeros(
                [lengths[a] if isinstance(a, str) else a for a in i.axes],
                dtype=dtype if i.dtype == "float" else torch.int64,
            ),
            i.axes,
        )
        for i in inputs
    )
    results = [tensor_record("image_features", dtype, ("M", size))]
    results += [tensor_record("deepstack_features", dtype, (extra, "M", size))] if extra else []
    return Traceable(Vision(family, model), arguments, tuple(results), variadic=len(arguments))


def prefix(
    decoder: Decoder, k: int, image_token_ids: tuple[int, ...], mrope: bool = False, deepstack: int = 0
) -> Traceable:
    """The prefix graph for a cut at layer `k`."""
    size, dtype = int(decoder.config.hidden_size), decoder.embed.weight.dtype
    inputs = (
        Argument("input_ids", torch.ones((B, S), dtype=torch.int64), ("B", "S")),
        Argument("image_features", torch.zeros((M, size), dtype=dtype), ("M", size)),
    )
    hidden = tensor_record("hidden_states", dtype, ("B", "S", size))
    if k == 0:
        return Traceable(Embedding(decoder, k, image_token_ids), inputs, (hidden,), decoder)
    caches = _caches(decoder, range(k), dtype)
    query = tensor_record("query_states", dtype, ("B", decoder.heads, "S", decoder.head_size))
    rest = (*((_deepstack(deepstack, size, dtype),) if deepstack else ()), *caches)
    return Traceable(
        Prefix(decoder, k, image_token_ids, deepstack),
        (*inputs, *_steps(S, "S", mrope), *rest),
        (hidden, query, *_presents(caches)),
        decoder,
        len(rest),
    )


def suffix(decoder: Decoder, k: int, mrope: bool = False, deepstack: int = 0) -> Traceable:
    """The suffix graph for a cut at layer `k`. Cut before DeepStack's last layer, it adds what the prefix did not."""
    size, dtype = int(decoder.config.hidden_size), decoder.embed.weight.dtype
    caches = _caches(decoder, range(k, len(decoder.layers)), dtype)
    deepstack = deepstack if k < deepstack else 0
    extra: tuple[Argument, ...] = ()
    if deepstack:
        rows = torch.arange(N).repeat(B, 1) % (M + 1) - 1
        extra = (_deepstack(deepstack, size, dtype), Argument("deepstack_rows", rows, ("B", "n")))
    inputs = (
        Argument("hidden_states", torch.zeros((B, S, size), dtype=dtype), ("B", "S", size)),
        Argument("keep_indices", torch.arange(N).repeat(B, 1), ("B", "n")),
        *_steps(N, "n", mrope),
    )
    logits = tensor_record("logits", torch.float32, ("B", 1, decoder.lm_head.out_features))
    rest = (*extra, *caches)
    return Traceable(Suffix(decoder, k, deepstack), (*inputs, *rest), (logits, *_presents(caches)), decoder, len(rest))
