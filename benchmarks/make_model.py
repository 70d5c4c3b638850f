"""A LLaVA of 0.5 billion decoder parameters with random weights: real classes and real sizes, no download.

    python benchmarks/make_model.py OUT [--dtype fp32|bf16] [--seed 0]

The decoder has the shape of Qwen2-0.5B (24 layers, d = 896, 14/2 heads, FFN 4864) with a vocabulary of 32000;
a small CLIP tower makes 576 image tokens of a 336x336 picture. Speed and memory do not depend on what the
weights are; what the model says is noise. The weights exist once: initialised in place, written shard by shard.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

SIDE, PATCH = 336, 14
VOCABULARY = 32000
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>", "<image>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | upper }}: "
    "{% for part in message['content'] if part['type'] == 'image' %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "{{ '</s>' if message['role'] == 'assistant' else ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


def processor() -> Any:
    """One token per byte of text, and CLIP's image processor."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import CLIPImageProcessorPil, LlavaProcessor, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    # The rest of the vocabulary cannot be typed, only generated.
    rest = [f"w{index}" for index in range(VOCABULARY - len(SPECIAL) - len(alphabet))]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate([*SPECIAL, *alphabet, *rest])}, []))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        extra_special_tokens={"image_token": "<image>"},
    )
    images = CLIPImageProcessorPil(
        size={"height": SIDE, "width": SIDE}, do_center_crop=False, crop_size={"height": SIDE, "width": SIDE}
    )
    return LlavaProcessor(
        image_processor=images,
        tokenizer=fast,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )


def config(layers: int = 24, positions: int = 4096) -> Any:
    from transformers import CLIPVisionConfig, LlavaConfig, Qwen2Config

    vision = CLIPVisionConfig(
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=4,
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=256,
    )
    text = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=layers,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        use_sliding_window=False,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
    )
    return LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=SPECIAL.index("<image>"),
        image_seq_length=(SIDE // PATCH) ** 2,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        tie_word_embeddings=False,
    )


def make(out: Path, dtype: str = "fp32", seed: int = 0, layers: int = 24, positions: int = 4096) -> None:
    """Write the checkpoint to the folder `out`: as many `layers`, with a context of `positions` tokens."""
    import torch
    from transformers import LlavaForConditionalGeneration

    torch.manual_seed(seed)
    model: Any = LlavaForConditionalGeneration._from_config(
        config(layers, positions), dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    )
    count = sum(parameter.numel() for parameter in model.parameters())
    # Shards bound what serialization holds beside the model.
    model.save_pretrained(out, max_shard_size="200MB")
    processor().save_pretrained(out)
    print(f"{out}: {count / 1e6:.0f} million parameters in {dtype}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.out.exists():
        parser.error(f"expected {args.out} not to exist, found it")
    make(args.out, args.dtype, args.seed)


if __name__ == "__main__":
    main()
