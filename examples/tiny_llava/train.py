"""Train the demo model from nothing: a real LLaVA, small enough for two CPU cores.

    python examples/tiny_llava/train.py --out examples/tiny_llava/checkpoint

Seeded: the same torch build on the same processor gives the same weights. What made it work:

- a wider initialisation than the default 0.02, with which the loss never leaves its plateau;
- dense supervision: one sequence asks about every object of its picture;
- a curriculum of 1, 2, 3 objects, the next when the running loss is under 0.5.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from task import COLOURS, GRID, PATCH, SIZE, Scene, Scenes, question
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

SPECIAL = ["<unk>", "<s>", "</s>", "<pad>", "<image>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "{{ 'ASSISTANT: ' }}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{{ eos_token }}"
    "{% else %}"
    "{{ 'USER: ' }}"
    "{% for part in message['content'] if part['type'] == 'image' %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] + ' ' }}{% endfor %}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


def build_processor() -> LlavaProcessor:
    """A byte-level BPE tokenizer of the task's words, and CLIP's image processor at 96x96."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = [f"USER: \n{question(c)} ASSISTANT: {d}" for c in COLOURS for d in range(10)]
    tokenizer.train_from_iterator(corpus * 4, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A",
        pair="<s> $A <s> $B",
        special_tokens=[("<s>", tokenizer.token_to_id("<s>"))],
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        extra_special_tokens={"image_token": "<image>"},
        model_max_length=1024,
    )
    images = CLIPImageProcessorPil(
        size={"height": SIZE, "width": SIZE},
        do_center_crop=False,
        crop_size={"height": SIZE, "width": SIZE},
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )
    return LlavaProcessor(
        image_processor=images,
        tokenizer=fast,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )


def build_model(processor: LlavaProcessor) -> LlavaForConditionalGeneration:
    vision = CLIPVisionConfig(
        hidden_size=96,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=SIZE,
        patch_size=PATCH,
        projection_dim=96,
        initializer_factor=2.0,
    )
    tokenizer = processor.tokenizer
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.05,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=GRID * GRID,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
    )
    return LlavaForConditionalGeneration(config)


class Sequences:
    """Token sequences in which every object of a picture is asked about, one turn each."""

    def __init__(self, processor: LlavaProcessor) -> None:
        self.tokenizer = processor.tokenizer
        self.image_ids = [self.tokenizer.convert_tokens_to_ids("<image>")] * (GRID * GRID)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def of(self, scene: Scene, naming: Sequence[bool] = ()) -> tuple[list[int], list[int]]:
        """Returns input ids and labels; -100 everywhere but at the answers.

        Args:
            naming: per turn, whether the colour of a digit is asked instead of the digit of a colour.
        """
        ids = [self.tokenizer.bos_token_id]
        labels = [-100]
        for turn, (colour, digit) in enumerate(zip(scene.colours, scene.digits, strict=True)):
            asked = self.encode("USER: ")
            if turn == 0:
                asked += self.image_ids + self.encode("\n")
            named = turn < len(naming) and naming[turn]
            text, said = (f"What color is {digit}?", colour) if named else (question(colour), str(digit))
            asked += self.encode(f"{text} ASSISTANT:")
            answer = [*self.encode(f" {said}"), self.tokenizer.eos_token_id]
            ids += asked + answer
            # The colour of a digit that stands there twice cannot be known.
            known = not named or scene.digits.count(digit) == 1
            labels += [-100] * len(asked) + (answer if known else [-100, -100])
        return ids, labels


def pixel_values(scenes: list[Scene]) -> torch.Tensor:
    """What the image processor makes of pictures that already have its size: [B, 3, SIZE, SIZE]."""
    pixels = np.stack([scene.pixels for scene in scenes]).astype(np.float32)
    return torch.from_numpy(pixels / 255.0 * 2.0 - 1.0).permute(0, 3, 1, 2).contiguous()


@torch.no_grad()
def accuracy(model: LlavaForConditionalGeneration, sequences: Sequences, scenes: list[Scene]) -> float:
    """Share of right digits, teacher-forced over every turn of every scene."""
    model.eval()
    right = total = 0
    for start in range(0, len(scenes), 64):
        part = scenes[start : start + 64]
        encoded = [sequences.of(scene) for scene in part]
        ids, labels = torch.tensor([e[0] for e in encoded]), torch.tensor([e[1] for e in encoded])
        predicted = model(input_ids=ids, pixel_values=pixel_values(part)).logits[:, :-1].argmax(-1)
        asked = (labels[:, 1:] != -100) & (labels[:, 1:] != sequences.tokenizer.eos_token_id)
        right += int((predicted[asked] == labels[:, 1:][asked]).sum())
        total += int(asked.sum())
    model.train()
    return right / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--naming", type=float, default=0.0)
    parser.add_argument("--init", type=Path)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(args.seed)
    processor = build_processor()
    model = build_model(processor)
    if args.init:
        model = LlavaForConditionalGeneration.from_pretrained(args.init)
    sequences = Sequences(processor)
    train = Scenes("train", seed=args.seed + 1)
    held_out = Scenes("held-out", seed=args.seed + 2)
    probe = [held_out.draw() for _ in range(200)]
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    warmup = 100
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warmup, max(0.0, (args.steps - step) / (args.steps - warmup))),
    )
    model.train()
    objects, running, score, started = 6 if args.init else 1, 2.3, 0.0, time.monotonic()
    rng = np.random.default_rng(args.seed)
    for step in range(args.steps):
        count = objects if objects == 1 else int(rng.integers(3, 7))
        naming = [bool(n) for n in rng.random(count) < args.naming]
        scenes = [train.draw(count) for _ in range(args.batch)]
        encoded = [sequences.of(scene, naming) for scene in scenes]
        ids, labels = torch.tensor([e[0] for e in encoded]), torch.tensor([e[1] for e in encoded])
        loss = model(input_ids=ids, pixel_values=pixel_values(scenes), labels=labels).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        # Half of the answer tokens are </s>, learnt at once: twice the mean is the digits' loss.
        running += 0.02 * (2 * loss.item() - running)
        if running < 0.5 and objects == 1:
            objects, running = 6, 1.5
            print(f"step {step}: {objects} objects from here", flush=True)
        if step % 50 == 0:
            rate = (time.monotonic() - started) / (step + 1)
            print(f"step {step} objects {objects} loss {running:.3f} {rate:.2f} s/step", flush=True)
        if (step + 1) % 250 == 0 or step + 1 == args.steps:
            score = accuracy(model, sequences, probe)
            print(f"step {step + 1}: held-out accuracy {score:.3f}", flush=True)
            save(model, processor, args.out)
    (args.out.parent / "training.json").write_text(
        json.dumps({"steps": args.steps, "seed": args.seed, "held_out_accuracy": score}, indent=2) + "\n"
    )


def save(model: LlavaForConditionalGeneration, processor: LlavaProcessor, out: Path) -> None:
    model.save_pretrained(out)
    processor.save_pretrained(out)


if __name__ == "__main__":
    main()
