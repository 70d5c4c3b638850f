"""Qwen-VL as a transformers model: a Qwen2 decoder, and the ViT and resampler, which transformers does not have.

Written from the technical report (arXiv 2308.12966, section 2) and the names in its checkpoints. The decoder is
Qwen2's but for the names of its weights, one matrix for queries, keys and values, and what happens beyond the
trained length: there its RoPE changes with the length (dynamic NTK) and its queries are scaled by a logarithm. Up to
`seq_length` tokens both are the identity, so that is the context here, and a longer prompt is refused.

Importing this file makes the classes known to transformers' Auto classes. No code of a checkpoint is run.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2Model,
)
from transformers import initialization as init
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import Chunk, WeightConverter, WeightRenaming
from transformers.modeling_outputs import BaseModelOutputWithPooling, CausalLMOutputWithPast

from fastv_trt.errors import UnsupportedModelError

QUERIES = 256
"""Image tokens of a picture: queries of the resampler, on a grid of 16 x 16."""


class QwenVLConfig(PreTrainedConfig):
    """A Qwen-VL config.json: the decoder's values at the top, the ViT's under `visual`."""

    model_type = "qwen"
    sub_configs_defaults: ClassVar[Any] = {"text_config": Qwen2Config}

    vocab_size: int = 151936
    hidden_size: int = 4096
    intermediate_size: int = 22016
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    kv_channels: int = 128
    rotary_emb_base: float = 10000
    rotary_pct: float = 1.0
    seq_length: int = 2048
    layer_norm_epsilon: float = 1e-6
    initializer_range: float = 0.02
    no_bias: bool = True
    tie_word_embeddings: bool = False
    visual: dict[str, Any] | None = None
    text_config: dict[str, Any] | PreTrainedConfig | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.text_config is None:
            self.text_config = {
                "vocab_size": self.vocab_size,
                "hidden_size": self.hidden_size,
                "intermediate_size": self.intermediate_size // 2,  # the config counts both halves of the gated MLP
                "num_hidden_layers": self.num_hidden_layers,
                "num_attention_heads": self.num_attention_heads,
                "num_key_value_heads": self.num_attention_heads,
                "max_position_embeddings": self.seq_length,
                "rms_norm_eps": self.layer_norm_epsilon,
                "initializer_range": self.initializer_range,
                "rope_parameters": {"rope_type": "default", "rope_theta": float(self.rotary_emb_base)},
                "tie_word_embeddings": self.tie_word_embeddings,
            }
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]

    def check(self) -> None:
        """Raise UnsupportedModelError for values that the decoder here would compute wrongly."""
        wanted = {"rotary_pct": 1.0, "no_bias": True, "kv_channels": self.hidden_size // self.num_attention_heads}
        for name, value in wanted.items():
            if getattr(self, name) != value:
                raise UnsupportedModelError(f"expected {name} {value} in a Qwen-VL config, found {getattr(self, name)}")
        if not self.visual:
            raise UnsupportedModelError("expected `visual` in a Qwen-VL config, found none; this is a language model")

    @property
    def image_seq_length(self) -> int:
        return QUERIES

    @property
    def image_token_id(self) -> int:
        """<imgpad>, two after <img>."""
        return int((self.visual or {})["image_start_id"]) + 2


class Grid(nn.Module):
    """Bicubic resizing of a square grid of positions, [16 * 16, D] -> [side * side, D], as one matrix."""

    weights: Tensor

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side
        self.register_buffer("weights", self.matrix(), persistent=False)

    def matrix(self) -> Tensor:
        source = math.isqrt(QUERIES)
        units = torch.eye(QUERIES, dtype=torch.float32, device="cpu").reshape(QUERIES, 1, source, source)
        if self.side == source:
            return units.flatten(1)
        resized = functional.interpolate(units, size=(self.side, self.side), mode="bicubic", align_corners=False)
        return resized.flatten(1).T.contiguous()

    def forward(self, positions: Tensor) -> Tensor:
        return (self.weights.float() @ positions.float()).to(positions.dtype)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention over [I,H,P,D], heads side by side again: [I,P,H*D]."""
    return functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


class Block(nn.Module):
    """A ViT layer. Its in_proj has query, key and value of each head side by side, not of all heads."""

    def __init__(self, width: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.heads = heads
        self.input_layernorm = nn.LayerNorm(width, eps=1e-6)
        self.attn = nn.ModuleDict({"in_proj": nn.Linear(width, 3 * width), "out_proj": nn.Linear(width, width)})
        self.post_attention_layernorm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, ffn), "down_proj": nn.Linear(ffn, width)})

    def forward(self, hidden: Tensor) -> Tensor:
        mixed = self.attn["in_proj"](self.input_layernorm(hidden))
        query, key, value = mixed.unflatten(-1, (self.heads, 3, -1)).permute(3, 0, 2, 1, 4)
        hidden = hidden + self.attn["out_proj"](attend(query, key, value))
        inner = functional.gelu(self.mlp["c_fc"](self.post_attention_layernorm(hidden)))
        result: Tensor = hidden + self.mlp["down_proj"](inner)
        return result


class Resampler(nn.Module):
    """One layer of cross-attention from 256 learned queries to the patches, both with 2-D positions."""

    def __init__(self, size: int, width: int, side: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(QUERIES, size))
        self.pos_embed = nn.Parameter(torch.zeros(QUERIES, size))
        self.grid = Grid(side)
        self.kv_proj = nn.Linear(width, size, bias=False)
        self.attn = nn.MultiheadAttention(size, max(1, size // 128))
        self.ln_q, self.ln_kv = nn.LayerNorm(size, eps=1e-6), nn.LayerNorm(size, eps=1e-6)

    def forward(self, patches: Tensor) -> Tensor:
        memory = self.ln_kv(self.kv_proj(patches))
        asked = (self.ln_q(self.query) + self.pos_embed)[None].expand(memory.shape[0], -1, -1)
        placed = memory + self.grid(self.pos_embed)
        weights, biases = self.attn.in_proj_weight.chunk(3), self.attn.in_proj_bias.chunk(3)
        query, key, value = (
            functional.linear(states, weight, bias).unflatten(-1, (self.attn.num_heads, -1)).transpose(1, 2)
            for states, weight, bias in zip((asked, placed, memory), weights, biases, strict=True)
        )
        result: Tensor = self.attn.out_proj(attend(query, key, value))
        return result


class Visual(nn.Module):
    """pixel_values [I,3,448,448] -> [I,256,d]."""

    def __init__(self, visual: dict[str, Any]) -> None:
        super().__init__()
        width, size, patch = int(visual["width"]), int(visual["output_dim"]), int(visual["patch_size"])
        side, ffn = int(visual["image_size"]) // patch, int(width * visual["mlp_ratio"])
        self.conv1 = nn.Conv2d(3, width, patch, stride=patch, bias=False)
        self.positional_embedding = nn.Parameter(torch.zeros(QUERIES, width))
        self.grid = Grid(side)
        self.ln_pre = nn.LayerNorm(width, eps=1e-6)
        blocks = [Block(width, int(visual["heads"]), ffn) for _ in range(int(visual["layers"]))]
        self.transformer = nn.ModuleDict({"resblocks": nn.ModuleList(blocks)})
        self.attn_pool = Resampler(size, width, side)
        self.ln_post = nn.LayerNorm(size, eps=1e-6)
        self.proj = nn.Parameter(torch.zeros(size, size))

    def forward(self, pixel_values: Tensor) -> Tensor:
        patches = self.conv1(pixel_values).flatten(2).transpose(1, 2)
        hidden = self.ln_pre(patches + self.grid(self.positional_embedding))
        blocks: Any = self.transformer["resblocks"]
        for block in blocks:
            hidden = block(hidden)
        result: Tensor = self.ln_post(self.attn_pool(hidden)) @ self.proj
        return result


class QWenLMHeadModel(PreTrainedModel, GenerationMixin):
    """Qwen-VL under the name that its checkpoints give it."""

    config_class = QwenVLConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _supports_sdpa = True
    _supports_attention_backend = True
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: QwenVLConfig) -> None:
        super().__init__(config)
        config.check()
        assert config.visual is not None
        self.model: Any = Qwen2Model(config.text_config)  # type: ignore[arg-type]
        self.visual = Visual(config.visual)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        if isinstance(module, Grid):  # not stored: made again wherever a checkpoint is loaded
            init.copy_(module.weights, module.matrix())
        for name in ("query", "pos_embed", "positional_embedding", "proj"):
            own = module._parameters.get(name)
            if own is not None:
                init.normal_(own, std=self.config.initializer_range)

    def get_decoder(self, *args: Any, **kwargs: Any) -> Any:
        return self.model

    def get_output_embeddings(self) -> Any:
        return self.lm_head

    def get_image_features(self, pixel_values: Tensor, **kwargs: Any) -> BaseModelOutputWithPooling:
        """Features of pictures, [I,256,d], as `pooler_output`."""
        return BaseModelOutputWithPooling(pooler_output=self.visual(pixel_values))

    def forward(
        self,
        input_ids: Tensor,
        pixel_values: Tensor | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits of the last `logits_to_keep` positions, or of all, [B,S,V]."""
        embeds = self.model.embed_tokens(input_ids)
        if pixel_values is not None:
            where = (input_ids == self.config.image_token_id)[..., None].expand_as(embeds)
            embeds = embeds.masked_scatter(where, self.visual(pixel_values).to(embeds.dtype))
        output = self.model(inputs_embeds=embeds, **kwargs)
        logits = self.lm_head(output.last_hidden_state[:, -logits_to_keep:])
        return CausalLMOutputWithPast(logits=logits, cache=output.cache)


# The ViT's blocks have names in common with the decoder's layers, and take the same new ones.
_NAMES = (
    ("^transformer.visual", "visual"),
    ("^transformer.wte", "model.embed_tokens"),
    ("^transformer.ln_f", "model.norm"),
    ("^transformer.h", "model.layers"),
    ("ln_1", "input_layernorm"),
    ("ln_2", "post_attention_layernorm"),
    ("attn.c_proj", "self_attn.o_proj"),
    ("mlp.w1", "mlp.up_proj"),
    ("mlp.w2", "mlp.gate_proj"),
    ("mlp.c_proj", "mlp.down_proj"),
)
_QKV = [f"self_attn.{part}_proj" for part in "qkv"]

AutoConfig.register(QwenVLConfig.model_type, QwenVLConfig, exist_ok=True)
AutoModelForImageTextToText.register(QwenVLConfig, QWenLMHeadModel, exist_ok=True)
register_checkpoint_conversion_mapping(
    QwenVLConfig.model_type,
    [
        *(WeightRenaming(old, new) for old, new in _NAMES),
        WeightConverter("attn.c_attn", _QKV, operations=[Chunk(dim=0)]),
    ],
    overwrite=True,
)
