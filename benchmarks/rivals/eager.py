"""transformers unpruned, and FastV written plainly in torch.

    python eager.py CHECKPOINT DTYPE K IMAGE_TOKEN KEPTS THREADS

The plain FastV is what a reader of the paper would write on top of transformers: eager attention in layer K-1 for its
weights, a gather, and a DynamicCache whose layers have two lengths. CHECKPOINT is the text decoder alone.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache
from worker import Run, serve


def unpruned(model: Any) -> Run:
    def run(ids: list[int], steps: int) -> tuple[float, list[float], list[int]]:
        cache, tokens, seconds = DynamicCache(), [], []
        given = torch.tensor([ids])
        for _ in range(steps + 1):
            started = time.perf_counter()
            logits = model(given, cache=cache, use_cache=True, logits_to_keep=1).logits
            tokens.append(int(logits[0, -1].argmax()))
            seconds.append(time.perf_counter() - started)
            given = torch.tensor([[tokens[-1]]])
        return seconds[0], seconds[1:], tokens

    return run


def fastv(model: Any, k: int, image_token: int, kept: int) -> Run:
    base, weights = model.model, {}
    base.layers[k - 1].self_attn.register_forward_hook(lambda module, given, out: weights.update(last=out[1]))

    def layers(hidden: Any, positions: Any, cache: Any, image: Any | None) -> Any:
        embeddings = base.rotary_emb(hidden, positions)
        for index, layer in enumerate(base.layers):
            scoring = image is not None and index == k - 1
            mask = None
            if scoring:
                length = hidden.shape[1]
                mask = torch.full((length, length), torch.finfo(hidden.dtype).min, dtype=hidden.dtype).triu(1)[
                    None, None
                ]
            base.config._attn_implementation = "eager" if scoring else "sdpa"
            hidden = layer(
                hidden,
                attention_mask=mask,
                position_ids=positions,
                cache=cache,
                use_cache=True,
                position_embeddings=embeddings,
            )
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
            if scoring:
                scores = weights["last"].float().mean(1)[0, -1][image]
                chosen = image[scores.topk(kept).indices]
                keep = torch.ones(hidden.shape[1], dtype=torch.bool)
                keep[image] = False
                keep[chosen] = True
                hidden, positions = hidden[:, keep], positions[:, keep]
                embeddings = base.rotary_emb(hidden, positions)
        return model.lm_head(base.norm(hidden[:, -1:]))

    def run(ids: list[int], steps: int) -> tuple[float, list[float], list[int]]:
        cache, tokens, seconds = DynamicCache(), [], []
        started = time.perf_counter()
        given = torch.tensor([ids])
        image = (given[0] == image_token).nonzero()[:, 0]
        logits = layers(base.embed_tokens(given), torch.arange(len(ids))[None], cache, image)
        tokens.append(int(logits[0, -1].argmax()))
        prefill = time.perf_counter() - started
        for step in range(steps):
            started = time.perf_counter()
            hidden = base.embed_tokens(torch.tensor([[tokens[-1]]]))
            logits = layers(hidden, torch.tensor([[len(ids) + step]]), cache, None)
            tokens.append(int(logits[0, -1].argmax()))
            seconds.append(time.perf_counter() - started)
        return prefill, seconds, tokens

    return run


if __name__ == "__main__":
    checkpoint, dtype, k, image_token, kepts, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    torch.set_grad_enabled(False)
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=kind, attn_implementation="sdpa").eval()
    rivals = {f"transformers {dtype}": unpruned(model)}
    for pair in kepts.split(","):
        ratio, kept = pair.split(":")
        rivals[f"torch FastV {dtype} R={ratio}"] = fastv(model, int(k), int(image_token), int(kept))
    serve(rivals, {"torch": torch.__version__, "transformers": transformers.__version__})
