"""Steps that the vision graphs of several families share, as torch functions. Only the exporter imports this file."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def select(states: tuple[Tensor, ...], layers: int | list[int], drop_first: bool) -> Tensor:
    """The chosen hidden states [I,P,D] side by side, without the class token if `drop_first`."""
    chosen = [states[layer] for layer in ([layers] if isinstance(layers, int) else layers)]
    return torch.cat([state[:, 1:] if drop_first else state for state in chosen], dim=-1)


def projected(model: Any, pixels: Tensor, tower: Any = None, full: bool = False) -> Tensor:
    """LLaVA's road: chosen layers of the tower, class token dropped if asked, projector: [I,P,d].

    The models' own `get_image_features` splits its result into a list, which fixes the number of images.
    """
    config, inner = model.config, model.model
    output = (tower or inner.vision_tower)(pixels, output_hidden_states=True, return_dict=True)
    drop = config.vision_feature_select_strategy == "default" and not full
    features: Tensor = inner.multi_modal_projector(select(output.hidden_states, config.vision_feature_layer, drop))
    return features


def rows_or(spare: Tensor, features: Tensor, index: Tensor) -> Tensor:
    """Rows `index` of `features` [R,d]; -1 is the row `spare` [d], such as a newline."""
    table = torch.cat((spare[None].to(features.dtype), features))
    return functional.embedding(index + 1, table)


def same(numbers: Tensor, each: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [1,1,P,P] that lets patches see those with the same number; a number stands for `each` patches.

    The hidden value is finite, because rows of -inf become NaN in some kernels.
    """
    patches = numbers[:, None].expand(-1, each).flatten()
    hidden = torch.finfo(torch.float16 if dtype == torch.float16 else torch.float32).min
    zero = torch.zeros((), dtype=dtype)
    return torch.where(patches[:, None] == patches[None, :], zero, torch.full((), hidden, dtype=dtype))[None, None]


def packed_attention(attention: Any, hidden: Tensor, mask: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """A Qwen vision layer's attention over the packed patches [P,D] of all pictures, under a mask [1,1,P,P].

    The layer's own forward splits the patches into a list of pictures, which fixes their number.
    """
    query, key, value = attention.qkv(hidden).unflatten(-1, (3, attention.num_heads, -1)).permute(1, 2, 0, 3)
    cos, sin = (part.float()[None] for part in rotary)

    def rotate(states: Tensor) -> Tensor:
        first, second = states.float().chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
        return (states.float() * cos + turned * sin).to(states.dtype)[None]

    seen = functional.scaled_dot_product_attention(
        rotate(query), rotate(key), value[None], attn_mask=mask, scale=attention.scaling
    )
    result: Tensor = attention.proj(seen[0].transpose(0, 1).flatten(1))
    return result
