"""Rankings as graphs without weights: layer K-1's queries and keys in, one score per visible slot out.

Every module scores all T visible slots; the host reads those of the image tokens. Arithmetic is fp32 whatever the
bundle's dtype. `inputs` names what a ranking reads, and its graph has no other inputs.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fastv_trt.export import ops
from fastv_trt.export.decoder import Decoder, static_rotary
from fastv_trt.export.graphs import Argument, B, C, S, T, Traceable, tensor_record

HIDDEN = -1e30
DART_PIVOTS = 4


class LastQueryRank(nn.Module):
    """Mean over heads of the last query's softmax over all keys: the authors' ranking.

    Source: the authors' modeling_llama.py, lines 774-783.
    """

    inputs: ClassVar[tuple[str, ...]] = ("query_states", "key", "slots", "write_index")

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.scale, self.groups = decoder.scale, decoder.key_value_heads

    def forward(self, query_states: Tensor, key: Tensor, slots: Tensor, write_index: Tensor) -> Tensor:
        newest = write_index + query_states.shape[2] - 1
        keys = ops.visible(key, slots).to(torch.float32)  # [B,G,T,D]
        return self.attended(query_states[:, :, -1].to(torch.float32), keys, slots, newest)

    def attended(self, query: Tensor, keys: Tensor, slots: Tensor, newest: Tensor) -> Tensor:
        """Attention of one `query` [B,H,D] over `keys` [B,G,T,D] up to slot `newest` [B]: [B,T]."""
        hidden = (slots[None, :] > newest[:, None])[:, None, None, :]
        grouped = query.unflatten(1, (self.groups, -1))  # [B,G,H/G,D]
        weights = torch.matmul(grouped * self.scale, keys.transpose(2, 3))
        return torch.softmax(weights.masked_fill(hidden, HIDDEN), dim=-1).mean(dim=(1, 2))


class ReceivedRank(LastQueryRank):
    """Mean over heads and over all query rows of the attention that each token gets: the paper's sentence.

    The zeros of the causal mask count. One key/value head at a time, so that the S x T weights of all heads
    never exist at once.
    """

    def forward(self, query_states: Tensor, key: Tensor, slots: Tensor, write_index: Tensor) -> Tensor:
        newest = write_index[:, None] + torch.arange(query_states.shape[2])[None, :]
        hidden = (slots[None, None, :] > newest[:, :, None])[:, None]  # [B,1,S,T]
        query = query_states.to(torch.float32).unflatten(1, (self.groups, -1))  # [B,G,H/G,S,D]
        keys = ops.visible(key, slots).to(torch.float32)
        received = [
            torch.softmax(
                torch.matmul(query[:, g] * self.scale, keys[:, g, None].transpose(2, 3)).masked_fill(hidden, HIDDEN),
                dim=-1,
            ).mean(dim=2)  # [B,H/G,T]
            for g in range(self.groups)
        ]
        return torch.cat(received, dim=1).mean(dim=1)


class NoRopeRank(LastQueryRank):
    """`last-query` with the rotation taken out of query and keys, so that a token's place does not count.

    Layers before K hold token t in slot t, so the slot is the position that the rotation came from.
    Source: FEATHER (arXiv 2412.13180), which finds that RoPE makes the image's last rows win.
    """

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(decoder)
        self.rotary: Any = static_rotary(decoder)

    def forward(self, query_states: Tensor, key: Tensor, slots: Tensor, write_index: Tensor) -> Tensor:
        newest = write_index + query_states.shape[2] - 1
        query = self.unrotated(query_states[:, :, -1:].to(torch.float32), newest[:, None])
        keys = self.unrotated(ops.visible(key, slots).to(torch.float32), slots[None])
        return self.attended(query[:, :, 0], keys, slots, newest)

    def unrotated(self, states: Tensor, positions: Tensor) -> Tensor:
        """Turn `states` [B,H,S,D] back by their `positions` [B,S]; YaRN's scale of the logits stays."""
        cos, sin = self.rotary(states, positions)  # [B,S,D], the halves repeated
        half = states.shape[-1] // 2
        turn = float(self.rotary.attention_scaling)
        cos, sin = cos[:, None, :, :half] / turn, sin[:, None, :, :half] / turn
        first, second = states[..., :half], states[..., half:]
        return torch.cat((first * cos + second * sin, second * cos - first * sin), dim=-1)


class KeyNormRank(nn.Module):
    """Tokens with small keys first: minus the L2 norm of the key, mean over key/value heads.

    Source: Devoto et al. (arXiv 2406.11430): keys of small norm are the ones that get attention later.
    """

    inputs: ClassVar[tuple[str, ...]] = ("key", "slots")

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()

    def forward(self, key: Tensor, slots: Tensor) -> Tensor:
        return -key_norms(ops.visible(key, slots))


class DartRank(nn.Module):
    """Tokens that duplicate some pivot least: pivots first, then minus the smallest cosine with any of them.

    Pivots are the image tokens, and as many text tokens, with the largest keys (L1, over all heads). Cosines are of
    the hidden states before layer K. Unlike the authors' code, which takes turns between pivots, the score is the
    paper's condition itself, so that one order serves every keep count.
    Source: DART (arXiv 2502.11494, section 3.3).
    """

    inputs: ClassVar[tuple[str, ...]] = ("hidden_states", "key", "slots", "write_index", "candidates")

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()

    def forward(
        self, hidden_states: Tensor, key: Tensor, slots: Tensor, write_index: Tensor, candidates: Tensor
    ) -> Tensor:
        count = hidden_states.shape[1]
        row = slots[None, :] - write_index[:, None]  # of hidden_states, [B,T]
        inside = (row >= 0) & (row < count)
        rows = ops.gather_rows(hidden_states, row.clamp(min=0).minimum(torch.full_like(row, count - 1)))
        unit = nn.functional.normalize(rows.to(torch.float32), dim=-1)  # [B,T,d]
        norms = ops.visible(key, slots).to(torch.float32).abs().sum(dim=(1, 3))
        image = candidates > 0
        ranked = inside & image
        pivots = [*_largest(norms, ranked), *_largest(norms, inside & ~image)]
        smallest = torch.full_like(norms, 2.0)
        for pivot in pivots:  # one-hot over slots, [B,T]
            vector = torch.matmul(pivot[:, None, :], unit)  # [B,1,d]; 0 if there was none left
            cosine = torch.matmul(unit, vector.transpose(1, 2))[:, :, 0]
            found = pivot.sum(dim=1, keepdim=True) > 0
            smallest = torch.where(found, torch.minimum(smallest, cosine), smallest)
        chosen = torch.stack(pivots[:DART_PIVOTS]).sum(dim=0)
        return torch.where(chosen > 0, torch.full_like(norms, 2.0), -smallest)


def key_norms(keys: Tensor) -> Tensor:
    """L2 norm of `keys` [B,G,T,D], mean over heads: [B,T]."""
    single = keys.to(torch.float32)
    return (single * single).sum(dim=-1).sqrt().mean(dim=1)


def _largest(norms: Tensor, allowed: Tensor) -> list[Tensor]:
    """One-hot rows [B,T] of the `DART_PIVOTS` largest `norms` where `allowed`; zeros where none is left.

    ArgMax and a comparison instead of TopK, whose K may not exceed T.
    """
    found = []
    places = torch.arange(norms.shape[1])[None, :]
    for _ in range(DART_PIVOTS):
        best = torch.where(allowed, norms, torch.full_like(norms, -1.0)).argmax(dim=1, keepdim=True)
        hit = (places == best) & allowed
        found.append(hit.to(torch.float32))
        allowed = allowed & ~hit
    return found


RANKS: dict[str, type[LastQueryRank] | type[KeyNormRank] | type[DartRank]] = {
    "last-query": LastQueryRank,
    "received": ReceivedRank,
    "last-query-norope": NoRopeRank,
    "key-norm": KeyNormRank,
    "dart": DartRank,
}


def obstacle(name: str, config: Any) -> str | None:
    """Why a decoder of this config cannot have the ranking `name`; None if it can."""
    rope = getattr(config, "rope_parameters", None) or {}
    if name == "last-query-norope" and "mrope_section" in rope:
        return "its positions have three parts (M-RoPE), which a cache slot does not tell"
    return None


def rank(decoder: Decoder, name: str) -> Traceable:
    """The rank graph `name`."""
    dtype, size, head = decoder.embed.weight.dtype, int(decoder.config.hidden_size), decoder.head_size
    known = (
        Argument("hidden_states", torch.zeros((B, S, size), dtype=dtype), ("B", "S", size)),
        Argument(
            "query_states", torch.zeros((B, decoder.heads, S, head), dtype=dtype), ("B", decoder.heads, "S", head)
        ),
        Argument(
            "key",
            torch.zeros((B, decoder.key_value_heads, C, head), dtype=dtype),
            ("B", decoder.key_value_heads, "C", head),
        ),
        Argument("slots", torch.arange(T), ("T",)),
        Argument("write_index", torch.zeros(B, dtype=torch.int64), ("B",)),
        Argument("candidates", torch.zeros((B, T), dtype=torch.int64), ("B", "T")),
    )
    kind = RANKS[name]
    inputs = tuple(argument for argument in known if argument.name in kind.inputs)
    return Traceable(kind(decoder), inputs, (tensor_record("scores", torch.float32, ("B", "T")),))
