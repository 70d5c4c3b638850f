"""The reference: the checkpoint's own transformers model in eager attention, whole, with hooks.

Independent of the exporter. Pruning is expressed as a mask: the forward pass keeps its full length, and from
layer K on the pruned tokens are hidden from every query. At prefill, and at every decode step, the last
token's logits are then those of a run in which the tokens are gone.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForImageTextToText
from transformers.utils import logging as transformers_logging

from fastv_trt.families import qwen_vl_model  # noqa: F401  (makes its classes known to transformers)

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Seen:
    """What one reference forward gave.

    Attributes:
        logits: of every position from the prompt's last on, float32 [t, V].
        hidden: activations before layer K, float32 [N, d].
        attention: of layer K-1, float32 [H, N, N]; None at K = 0.
        query, key: of layer K-1 as the projections give them, before RoPE, float32 [H, N, D] and [G, N, D].
        rotated_key: key after RoPE, float32 [G, N, D].
        scale: of the attention logits, YaRN's included.
    """

    logits: Array
    hidden: Array
    attention: Array | None
    query: Array | None = None
    key: Array | None = None
    rotated_key: Array | None = None
    scale: float = 1.0


class Oracle:
    """A checkpoint in eager fp32, its weights rounded to the bundle's dtype first, so that only arithmetic differs."""

    def __init__(self, checkpoint: str | os.PathLike[str], k: int, dtype: str, allow_pickle: bool = False) -> None:
        rounded = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
        transformers_logging.disable_progress_bar()
        model: Any = AutoModelForImageTextToText.from_pretrained(
            checkpoint,
            dtype=rounded,
            attn_implementation="eager",
            local_files_only=True,
            use_safetensors=None if allow_pickle else True,  # None: safetensors if there are any
            weights_only=True,
        )
        self.model = model.eval().requires_grad_(False).float()
        self.layers: Any = model.get_decoder().layers
        self.k = k

    def inputs(
        self, outputs: Sequence[Mapping[str, NDArray[Any]]], prompt_ids: NDArray[np.int64] | None = None
    ) -> dict[str, torch.Tensor]:
        """The model's own inputs for pictures and clips, of what the image processor made of each.

        As in transformers' batches: smaller pictures are filled up with zeros, which the models leave out again.

        Args:
            outputs: of the image processor, per picture, and of the video processor, per clip.
            prompt_ids: of a second tokenizer.
        """
        accepted = inspect.signature(self.model.forward).parameters
        arrays: dict[str, list[NDArray[Any]]] = {}
        for output in outputs:
            for name, array in output.items():
                arrays.setdefault(name, []).append(array)
        found = {name: _stack(pieces) for name, pieces in arrays.items() if name in accepted}
        if "batch_num_images" in accepted and "pixel_values" in found:
            found["batch_num_images"] = np.array([len(found["pixel_values"])])
        if prompt_ids is not None and "qformer_input_ids" in accepted:
            found["qformer_input_ids"] = prompt_ids
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in found.items()}

    def image_features(self, inputs: Mapping[str, torch.Tensor]) -> Array:
        """Features of all pictures, or of all clips where there are no pictures, [M, d]."""
        name = "get_image_features" if "pixel_values" in inputs else "get_video_features"
        road = getattr(self.model, name, None) or getattr(self.model.model, name)
        accepted = {*inspect.signature(road).parameters, "image_sizes"}  # LLaVA hands it on to a Pixtral tower
        with torch.no_grad():
            output = road(**{n: t for n, t in inputs.items() if n in accepted}, return_dict=True).pooler_output
        rows = torch.cat(list(output)) if isinstance(output, (list, tuple)) else output.flatten(0, -2)
        features: Array = rows.numpy()
        return features

    def forward(
        self,
        ids: NDArray[np.int64],
        inputs: Mapping[str, torch.Tensor],
        pruned: NDArray[np.bool_] | None = None,
        last: int = 1,
    ) -> Seen:
        """One full-length forward.

        Args:
            ids: prompt, and `last` - 1 tokens generated after it, [N].
            inputs: of `inputs`.
            pruned: true where a token is hidden from layer K on, [N].
            last: how many positions at the end to give logits of.
        """
        seen: dict[str, torch.Tensor] = {}
        with torch.no_grad(), self._watching(seen, pruned):
            output = self.model(
                input_ids=torch.from_numpy(ids)[None],
                **inputs,
                **self._positions(ids, inputs, last - 1),
                use_cache=False,
                logits_to_keep=last,
            )
        attention = seen.get("attention")
        if attention is None:
            return Seen(output.logits[0].numpy(), seen["hidden"][0].numpy(), None)
        layer = self.layers[self.k - 1].self_attn
        turn = float(self.model.get_decoder().rotary_emb.attention_scaling)
        return Seen(
            logits=output.logits[0].numpy(),
            hidden=seen["hidden"][0].numpy(),
            attention=attention[0].float().numpy(),
            query=_heads(seen["query"], layer.head_dim),
            key=_heads(seen["key"], layer.head_dim),
            rotated_key=seen["rotated_key"][0].numpy(),
            scale=float(layer.scaling) * turn**2,
        )

    def greedy(
        self,
        ids: NDArray[np.int64],
        inputs: Mapping[str, torch.Tensor],
        tokens: int,
        never: tuple[int, ...] = (),
    ) -> list[int]:
        """Greedy continuation of the unmodified model with its own cache; no stop token ends it.

        Args:
            never: ids that are passed over (image tokens: the model refuses one without features).
        """
        chosen: list[int] = []
        model = self.model
        with torch.no_grad():
            output = self.model(
                input_ids=torch.from_numpy(ids)[None],
                **inputs,
                **self._token_types(ids, inputs),
                use_cache=True,
                logits_to_keep=1,
            )
            while True:
                chosen.append(best(output.logits[0, -1].numpy(), never))
                if len(chosen) == tokens:
                    return chosen
                # InstructBLIP keeps its language model's cache one level down, and goes on without its tower.
                if (inner := getattr(output, "language_model_outputs", None)) is not None:
                    model, output = self.model.language_model, inner
                output = model(input_ids=torch.tensor([[chosen[-1]]]), cache=output.cache, use_cache=True)

    def _token_types(self, ids: NDArray[np.int64], inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """For models with M-RoPE: 1 where an image token stands, 2 where one of a clip."""
        if not inputs or not hasattr(getattr(self.model, "model", None), "get_rope_index"):
            return {}
        config = self.model.config
        kinds = (ids == config.image_token_id) * 1 + (ids == config.video_token_id) * 2
        return {"mm_token_type_ids": torch.from_numpy(kinds.astype(np.int32))[None]}

    def _positions(
        self, ids: NDArray[np.int64], inputs: Mapping[str, torch.Tensor], generated: int
    ) -> dict[str, torch.Tensor]:
        """For models with M-RoPE: the prompt's position ids, and those that `generate` gives what follows."""
        prompt = ids[: len(ids) - generated]
        types = self._token_types(prompt, inputs)
        if not types:
            return {}
        grids = {name: tensor for name, tensor in inputs.items() if "pixel_values" not in name}
        places, delta = self.model.model.get_rope_index(torch.from_numpy(prompt)[None], **types, **grids)
        after = torch.arange(len(prompt), len(ids)).expand(3, 1, -1) + delta[None]
        return {"position_ids": torch.cat((places, after), dim=-1)}

    @contextmanager
    def _watching(self, seen: dict[str, torch.Tensor], pruned: NDArray[np.bool_] | None) -> Iterator[None]:
        def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
            hidden = args[0] if args else kwargs["hidden_states"]
            if module is self.layers[self.k]:
                seen["hidden"] = hidden
            if pruned is not None:
                kwargs = {**kwargs, "attention_mask": _hide(kwargs["attention_mask"], pruned)}
            return args, kwargs

        def attended(module: Any, args: Any, output: Any) -> None:
            seen["attention"] = output[1]

        def projected(name: str) -> Any:
            return lambda module, args, output: seen.__setitem__(name, output)

        handles = [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in self.layers[self.k :]]
        if self.k > 0:
            attention = self.layers[self.k - 1].self_attn
            handles.append(attention.register_forward_hook(attended))
            for name, short in (("query", "q"), ("key", "k")):
                last = getattr(attention, f"{short}_norm", None) or getattr(attention, f"{short}_proj")
                handles.append(last.register_forward_hook(projected(name)))
        try:
            with self._rotated(seen):
                yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def _rotated(self, seen: dict[str, torch.Tensor]) -> Iterator[None]:
        """Watches what the eager attention of layer K-1 is called with."""
        if self.k == 0:
            yield
            return
        watched = self.layers[self.k - 1].self_attn
        home = sys.modules[type(watched).__module__]
        attend = home.eager_attention_forward

        def watching(module: Any, query: torch.Tensor, key: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if module is watched:
                seen["rotated_key"] = key
            return attend(module, query, key, *args, **kwargs)

        with mock.patch.object(home, "eager_attention_forward", watching):
            yield


def best(logits: Array, never: tuple[int, ...]) -> int:
    """The most likely token that is not one of `never`."""
    allowed = logits.copy()
    allowed[list(never)] = -np.inf
    return int(allowed.argmax())


def _heads(projected: torch.Tensor, head_size: int) -> Array:
    """A projection [1, N, heads * D], or [1, N, heads, D], as [heads, N, D]."""
    states: Array = projected[0].flatten(1).unflatten(-1, (-1, head_size)).transpose(0, 1).numpy()
    return states


def _hide(mask: torch.Tensor, pruned: NDArray[np.bool_]) -> torch.Tensor:
    columns = torch.from_numpy(pruned)[None, None, None, :]
    if mask.dtype == torch.bool:
        return mask & ~columns
    return mask.masked_fill(columns, torch.finfo(mask.dtype).min)


def _stack(pieces: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Arrays joined along axis 0, filled up with zeros to one size along the others."""
    size = np.max([piece.shape[1:] for piece in pieces], axis=0).astype(int)
    filled = [
        np.pad(p, [(0, 0), *((0, most - now) for most, now in zip(size, p.shape[1:], strict=True))]) for p in pieces
    ]
    return np.concatenate(filled)
