"""Train the demo model from nothing: a real LLaVA, small enough for two CPU cores.

    python examples/tiny_llava/train.py --out examples/tiny_llava/checkpoint

Seeded: the same torch build on the same processor gives the same weights. About 25 minutes on one core. Three stages,
the first two as LLaVA itself is trained:

1. alignment (`Alignment`): tower, projector and word embeddings only, a label for every patch of a digit;
2. questions, the whole model: one sequence asks about every object of its picture;
3. two more layers below the others (`expand`), and more questions.

Also needed: a wider initialisation than the default 0.02, and a prompt that ends with the colour. Without either of
these two and stage 1, the model learnt to read digits, but in an hour not which one was asked for.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from task import COLOURS, GRID, PATCH, SCALE, SIZE, Scene, Scenes, question
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

OBJECTS = 3
ALIGNMENT_WEIGHT = 0.3  # of stage 1's loss in stage 2
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>", "<image>"]
# The question ends with what it asks for (its mark is left out), and the answer follows at once: the prompt's last
# token is the colour. With more text between them the model has to learn two hops together and stays on a plateau.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "{{ ' ' }}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{{ eos_token }}"
    "{% else %}"
    "{{ 'USER: ' }}"
    "{% for part in message['content'] if part['type'] == 'image' %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'].rstrip('? ') }}{% endfor %}"
    "{% endif %}"
    "{% endfor %}"
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

    def of(self, scene: Scene) -> tuple[list[int], list[int]]:
        """Returns input ids and labels; -100 everywhere but at the answers."""
        ids = [self.tokenizer.bos_token_id]
        labels = [-100]
        for turn, (colour, digit) in enumerate(zip(scene.colours, scene.digits, strict=True)):
            asked = self.encode("USER: ")
            if turn == 0:
                asked += self.image_ids + self.encode("\n")
            asked += self.encode(question(colour).rstrip("?"))
            answer = [*self.encode(f" {digit}"), self.tokenizer.eos_token_id]
            ids += asked + answer
            labels += [-100] * len(asked) + answer
        return ids, labels


def pixel_values(scenes: list[Scene]) -> torch.Tensor:
    """What the image processor makes of pictures that already have its size: [B, 3, SIZE, SIZE]."""
    pixels = np.stack([scene.pixels for scene in scenes]).astype(np.float32)
    return torch.from_numpy(pixels / 255.0 * 2.0 - 1.0).permute(0, 3, 1, 2).contiguous()


class Alignment:
    """LLaVA's first stage in small: image features should say in words what their patch shows.

    The loss of a patch that belongs to a digit: its feature row, multiplied with the embeddings of the ten digits
    and of the colours, should give that digit and that colour. Patches of the background have no loss.
    """

    def __init__(self, processor: LlavaProcessor) -> None:
        def ids(words: Iterable[object]) -> list[int]:
            return [processor.tokenizer.encode(f" {word}", add_special_tokens=False)[0] for word in words]

        self.digits, self.colours = ids(range(10)), ids(COLOURS)

    def loss(self, model: LlavaForConditionalGeneration, features: torch.Tensor, scenes: list[Scene]) -> torch.Tensor:
        """Mean cross-entropy over the digits' patches; `features` are [B, GRID * GRID, d]."""
        rows: list[int] = []
        digits: list[int] = []
        colours: list[int] = []
        side = 8 * SCALE // PATCH
        for index, scene in enumerate(scenes):
            for colour, digit, (row, col) in zip(scene.colours, scene.digits, scene.corners, strict=True):
                for patch in range(side * side):
                    place = (row + patch // side) * GRID + col + patch % side
                    rows.append(index * GRID * GRID + place)
                    digits.append(digit)
                    colours.append(list(COLOURS).index(colour))
        chosen = features.flatten(0, 1)[rows]
        words = model.get_input_embeddings().weight
        loss = torch.nn.functional.cross_entropy
        return loss(chosen @ words[self.digits].T, torch.tensor(digits)) + loss(
            chosen @ words[self.colours].T, torch.tensor(colours)
        )


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


class Run:
    """Optimizer with 100 steps of warm-up and linear decay over a stage."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], rate: float, steps: int) -> None:
        self.parameters = list(parameters)
        self.optimizer = torch.optim.AdamW(self.parameters, lr=rate, weight_decay=0.01)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min((step + 1) / 100, max(0.0, (steps - step) / (steps - 100)))
        )
        self.started = time.monotonic()

    def step(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.schedule.step()


def expand(model: LlavaForConditionalGeneration) -> None:
    """Put two copies of layer 0 below it that add nothing yet (output projections at 0); the top two layers go.

    Block expansion, as in LLaMA Pro (arXiv 2401.02415). A model this small reads the whole picture in its first layer,
    so that dropping tokens after it costs nothing, however they are chosen. Large models look early and read later;
    after this stage, so does this one.
    """
    old = model.model.language_model.layers
    new = [copy.deepcopy(old[0]), copy.deepcopy(old[0]), *old[: len(old) - 2]]
    with torch.no_grad():
        for layer in new[:2]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    for index, layer in enumerate(new):
        layer.self_attn.layer_idx = index
    model.model.language_model.layers = torch.nn.ModuleList(new)


def align(model: LlavaForConditionalGeneration, alignment: Alignment, train: Scenes, args: argparse.Namespace) -> None:
    """Stage 1: tower, projector and the words' embeddings."""
    parts = (model.model.vision_tower, model.model.multi_modal_projector, model.get_input_embeddings())
    run = Run((p for part in parts for p in part.parameters()), args.lr, args.align_steps)
    for step in range(args.align_steps):
        scenes = [train.draw(5) for _ in range(args.batch)]
        features = torch.stack(list(model.model.get_image_features(pixel_values(scenes)).pooler_output))
        loss = alignment.loss(model, features, scenes)
        run.step(loss)
        if step % 100 == 0:
            rate = (time.monotonic() - run.started) / (step + 1)
            print(f"align {step} loss {loss.item():.3f} {rate:.3f} s/step", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--align-steps", type=int, default=3000)
    parser.add_argument("--steps", type=int, default=1300)
    parser.add_argument("--expanded-steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(args.seed)
    processor = build_processor()
    model = build_model(processor)
    sequences, alignment = Sequences(processor), Alignment(processor)
    held_out = Scenes("held-out", seed=args.seed + 2)
    probe = [held_out.draw() for _ in range(200)]
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    model.train()

    def ask(model: LlavaForConditionalGeneration, steps: int, rate: float, seed: int) -> float:
        """Stages 2 and 3: the whole model, one sequence asks about every object. Returns the held-out accuracy."""
        train = Scenes("train", seed=args.seed + seed)
        run = Run(model.parameters(), rate, steps)
        running, score = 2.3, 0.0
        for step in range(steps):
            scenes = [train.draw(OBJECTS) for _ in range(args.batch)]
            encoded = [sequences.of(scene) for scene in scenes]
            ids, labels = torch.tensor([e[0] for e in encoded]), torch.tensor([e[1] for e in encoded])
            output = model(input_ids=ids, pixel_values=pixel_values(scenes), labels=labels)
            features = torch.stack(list(output.image_outputs.pooler_output))
            run.step(output.loss + ALIGNMENT_WEIGHT * alignment.loss(model, features, scenes))
            # Half of the answer tokens are </s>, learnt at once: twice the mean is the digits' loss.
            running += 0.02 * (2 * output.loss.item() - running)
            if step % 50 == 0:
                seconds = (time.monotonic() - run.started) / (step + 1)
                print(f"step {step} loss {running:.3f} {seconds:.2f} s/step", flush=True)
            if (step + 1) % 250 == 0 or step + 1 == steps:
                score = accuracy(model, sequences, probe)
                print(f"step {step + 1}: held-out accuracy {score:.3f}", flush=True)
                save(model, processor, args.out)
        return score

    align(model, alignment, Scenes("train", seed=args.seed + 1), args)
    ask(model, args.steps, args.lr, 1)
    expand(model)
    score = ask(model, args.expanded_steps, args.lr / 3, 2)
    save(model, processor, args.out)
    record = {name: getattr(args, name) for name in ("align_steps", "steps", "expanded_steps", "batch", "lr", "seed")}
    record["held_out_accuracy"] = score
    (args.out.parent / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def save(model: LlavaForConditionalGeneration, processor: LlavaProcessor, out: Path) -> None:
    model.save_pretrained(out)
    processor.save_pretrained(out)


if __name__ == "__main__":
    main()
