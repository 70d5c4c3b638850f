"""Qwen-VL-Chat from a random checkpoint in its own layout, against a reference written from the published description.

The reference works on the checkpoint's own tensors by their own names and shares no code with the importer:
technical report arXiv 2308.12966, section 2, and config.json. Tensor names are those of the public checkpoints.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from fastv_trt.bundle import Bundle
from fastv_trt.errors import InputError, UnsupportedModelError
from fastv_trt.export import export
from fastv_trt.export.sizes import measure
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Runtime
from fastv_trt.verify import verify
from tests.conftest import picture
from tests.test_export_errors import edit

WIDTH, HEADS, LAYERS, FFN, CONTEXT = 256, 4, 5, 160, 1024
VIT, VIT_HEADS, VIT_LAYERS, PATCH, GRID = 48, 3, 2, 14, 20  # 20 x 20 patches: positions have to be resized
WORDS = ["what", " is", " the", " colour", "ing", "tion", " a", "Picture", "system", "user", "assistant"]


def merged(words: Iterable[str]) -> list[bytes]:
    """Ranks of a small tiktoken file: all bytes, then every beginning of every word."""
    ranks = [bytes([byte]) for byte in range(256)]
    for word in (word.encode() for word in words):
        ranks += [word[:end] for end in range(2, len(word) + 1) if word[:end] not in ranks]
    return ranks


RANKS = merged(WORDS)
IMG = len(RANKS) + 3 + 205 + 6  # after the control tokens and the marks of boxes
CONFIG: dict[str, Any] = {
    "architectures": ["QWenLMHeadModel"],
    "auto_map": {
        "AutoConfig": "configuration_qwen.QWenConfig",
        "AutoModelForCausalLM": "modeling_qwen.QWenLMHeadModel",
    },
    "model_type": "qwen",
    "bf16": True,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "kv_channels": WIDTH // HEADS,
    "layer_norm_epsilon": 1e-6,
    "max_position_embeddings": 4 * CONTEXT,
    "seq_length": CONTEXT,
    "no_bias": True,
    "rotary_emb_base": 10000,
    "rotary_pct": 1.0,
    "use_dynamic_ntk": True,
    "use_logn_attn": True,
    "tie_word_embeddings": False,
    "vocab_size": IMG + 8,
    "visual": {
        "heads": VIT_HEADS,
        "image_size": GRID * PATCH,
        "image_start_id": IMG,
        "layers": VIT_LAYERS,
        "mlp_ratio": 2.5,
        "output_dim": WIDTH,
        "patch_size": PATCH,
        "width": VIT,
    },
}


def sincos(side: int, size: int) -> Tensor:
    """2-D positions: one half of the channels for the column, one for the row."""
    omega = 10000.0 ** (-torch.arange(size // 4, dtype=torch.float64) / (size // 4))
    rows, columns = (axis.flatten() for axis in torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"))
    angles = [axis[:, None].double() * omega for axis in (columns, rows)]
    return torch.cat([f(a) for a in angles for f in (torch.sin, torch.cos)], dim=1).float()


def weights() -> dict[str, Tensor]:
    """Random weights under the names of the public checkpoints."""
    torch.manual_seed(0)
    inner = int(VIT * CONFIG["visual"]["mlp_ratio"])
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (CONFIG["vocab_size"], WIDTH),
        "transformer.ln_f.weight": (WIDTH,),
        "lm_head.weight": (CONFIG["vocab_size"], WIDTH),
        "transformer.visual.conv1.weight": (VIT, 3, PATCH, PATCH),
        "transformer.visual.positional_embedding": (256, VIT),
        "transformer.visual.proj": (WIDTH, WIDTH),
        "transformer.visual.attn_pool.query": (256, WIDTH),
        "transformer.visual.attn_pool.kv_proj.weight": (WIDTH, VIT),
        "transformer.visual.attn_pool.attn.in_proj_weight": (3 * WIDTH, WIDTH),
        "transformer.visual.attn_pool.attn.in_proj_bias": (3 * WIDTH,),
        "transformer.visual.attn_pool.attn.out_proj.weight": (WIDTH, WIDTH),
        "transformer.visual.attn_pool.attn.out_proj.bias": (WIDTH,),
    }
    norms = [("ln_pre", VIT), ("ln_post", WIDTH), ("attn_pool.ln_q", WIDTH), ("attn_pool.ln_kv", WIDTH)]
    for layer in range(VIT_LAYERS):
        block = f"transformer.resblocks.{layer}"
        norms += [(f"{block}.ln_1", VIT), (f"{block}.ln_2", VIT)]
        linear = {"attn.in_proj": (3 * VIT, VIT), "attn.out_proj": (VIT, VIT)}
        linear |= {"mlp.c_fc": (inner, VIT), "mlp.c_proj": (VIT, inner)}
        for name, shape in linear.items():
            shapes[f"transformer.visual.{block}.{name}.weight"] = shape
            shapes[f"transformer.visual.{block}.{name}.bias"] = shape[:1]
    for name, size in norms:
        shapes |= {f"transformer.visual.{name}.{part}": (size,) for part in ("weight", "bias")}
    for layer in range(LAYERS):
        block = f"transformer.h.{layer}"
        shapes |= {f"{block}.ln_1.weight": (WIDTH,), f"{block}.ln_2.weight": (WIDTH,)}
        shapes |= {f"{block}.attn.c_attn.weight": (3 * WIDTH, WIDTH), f"{block}.attn.c_attn.bias": (3 * WIDTH,)}
        shapes |= {f"{block}.attn.c_proj.weight": (WIDTH, WIDTH), f"{block}.mlp.c_proj.weight": (WIDTH, FFN)}
        shapes |= {f"{block}.mlp.w1.weight": (FFN, WIDTH), f"{block}.mlp.w2.weight": (FFN, WIDTH)}
    found = {name: torch.randn(shape) * (0.08 if len(shape) > 1 else 0.1) for name, shape in shapes.items()}
    for name in found:
        if ".ln_" in name and name.endswith("weight"):
            found[name] += 1.0
    found["transformer.wte.weight"] *= 12  # as large as the picture's features
    found["transformer.visual.attn_pool.pos_embed"] = sincos(16, WIDTH)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as the public ones are laid out, without the code that lies beside theirs."""
    path = tmp_path_factory.mktemp("qwen") / "checkpoint"
    path.mkdir()
    save_file(weights(), path / "model.safetensors", {"format": "pt"})
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": len(RANKS), "pad_token_id": len(RANKS)}))
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(RANKS)]
    (path / "qwen.tiktoken").write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def bundles(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Bundle]:
    made: dict[int, Bundle] = {}

    def get(k: int) -> Bundle:
        if k not in made:
            made[k] = export(folder, tmp_path_factory.mktemp("bundles") / "bundle", k=k).bundle
        return made[k]

    return get


class Reference:
    """The description, step by step, in float64."""

    def __init__(self, folder: Path) -> None:
        self.state = {name: weight.double() for name, weight in load_file(folder / "model.safetensors").items()}

    def __getitem__(self, name: str) -> Tensor:
        return self.state[f"transformer.{name}"]

    def norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self[f"visual.{name}.weight"], self[f"visual.{name}.bias"]
        return functional.layer_norm(x, weight.shape, weight, bias, 1e-6)

    def rms(self, name: str, x: Tensor) -> Tensor:
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self[f"{name}.weight"]

    def linear(self, name: str, x: Tensor) -> Tensor:
        bias = self.state.get(f"transformer.{name}.bias")
        return x @ self[f"{name}.weight"].T + (0 if bias is None else bias)

    def resized(self, positions: Tensor) -> Tensor:
        grid = positions.reshape(1, 16, 16, -1).permute(0, 3, 1, 2).float()
        larger = functional.interpolate(grid, size=(GRID, GRID), mode="bicubic", align_corners=False)
        return larger[0].permute(1, 2, 0).flatten(0, 1).double()

    def picture(self, pixels: Tensor) -> Tensor:
        """One picture [3,H,W] -> [256,d]: ViT, resampler, projection."""
        patches = pixels.double().unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH)  # [3,rows,columns,PATCH,PATCH]
        patches = patches.permute(1, 2, 0, 3, 4).flatten(2).flatten(0, 1)
        x = patches @ self["visual.conv1.weight"].flatten(1).T + self.resized(self["visual.positional_embedding"])
        x = self.norm("ln_pre", x)
        for layer in range(VIT_LAYERS):
            block = f"visual.transformer.resblocks.{layer}"
            mixed = self.linear(f"{block}.attn.in_proj", self.norm(f"{block[7:]}.ln_1", x))
            size, heads = VIT // VIT_HEADS, []
            for head in mixed.split(3 * size, dim=1):  # each head's query, key and value stand together
                query, key, value = head.split(size, dim=1)
                heads.append(torch.softmax(query @ key.T / math.sqrt(size), dim=-1) @ value)
            x = x + self.linear(f"{block}.attn.out_proj", torch.cat(heads, dim=1))
            hidden = functional.gelu(self.linear(f"{block}.mlp.c_fc", self.norm(f"{block[7:]}.ln_2", x)))
            x = x + self.linear(f"{block}.mlp.c_proj", hidden)
        memory = self.norm("attn_pool.ln_kv", x @ self["visual.attn_pool.kv_proj.weight"].T)
        places = self["visual.attn_pool.pos_embed"]
        pool = torch.nn.MultiheadAttention(WIDTH, WIDTH // 128, dtype=torch.float64)
        pool.load_state_dict({n: self[f"visual.attn_pool.attn.{n}"] for n in pool.state_dict()})
        asked = self.norm("attn_pool.ln_q", self["visual.attn_pool.query"]) + places
        with torch.no_grad():
            answers = pool(asked, memory + self.resized(places), memory, need_weights=False)[0]
        return self.norm("ln_post", answers) @ self["visual.proj"]

    def logits(self, ids: np.ndarray, pictures: list[Tensor], pruned: np.ndarray, k: int) -> np.ndarray:
        """Logits of every position. Tokens in `pruned` are seen by nobody from layer k on."""
        x = self["wte.weight"][torch.from_numpy(ids)].clone()
        starts = [i for i, token in enumerate(ids) if token == IMG]
        for start, pixels in zip(starts, pictures, strict=True):
            assert ids[start + 257] == IMG + 1
            x[start + 1 : start + 257] = self.picture(pixels)
        count, size = len(ids), WIDTH // HEADS
        angles = torch.arange(count)[:, None].double() * 10000.0 ** (-torch.arange(0, size, 2).double() / size)
        cos, sin = torch.cat((angles, angles), 1).cos(), torch.cat((angles, angles), 1).sin()
        causal = torch.ones(count, count).triu(1).bool()

        def rotate(states: Tensor) -> Tensor:
            first, second = states.chunk(2, dim=-1)
            return states * cos + torch.cat((-second, first), -1) * sin

        for layer in range(LAYERS):
            block = f"h.{layer}"
            hidden = causal | torch.from_numpy(pruned)[None, :] if layer >= k else causal
            queries, keys, values = self.linear(f"{block}.attn.c_attn", self.rms(f"{block}.ln_1", x)).chunk(3, dim=-1)
            heads = []
            for q, key, value in zip(*(part.split(size, dim=-1) for part in (queries, keys, values)), strict=True):
                scores = rotate(q) @ rotate(key).T / math.sqrt(size)
                weight = torch.softmax(scores.masked_fill(hidden, -1e300), dim=-1)
                heads.append(weight @ value)
            x = x + self.linear(f"{block}.attn.c_proj", torch.cat(heads, -1))
            inner = self.rms(f"{block}.ln_2", x)
            gated = self.linear(f"{block}.mlp.w1", inner) * functional.silu(self.linear(f"{block}.mlp.w2", inner))
            x = x + self.linear(f"{block}.mlp.c_proj", gated)
        return (self.rms("ln_f", x) @ self.state["lm_head.weight"].T).numpy()


@pytest.mark.families
@pytest.mark.parametrize("k", [2, 3])
def test_the_bundle_computes_what_the_description_says(bundles: Callable[[int], Bundle], folder: Path, k: int) -> None:
    runtime, reference = Runtime.load(bundles(k)), Reference(folder)
    chain, processor = runtime.chain, runtime.processor
    for images in ([picture(1)], [picture(2), picture(3, 30, 90)]):
        prompt = processor.render([processor.user("what is the colour", len(images))])
        request = processor.request(prompt, images)
        assert request.image_sizes == (256,) * len(images)
        pixels = list(torch.from_numpy(request.vision_inputs["pixel_values"]))
        features = chain.device.download(chain.features(request, 256 * len(images))["image_features"])
        expected = torch.cat([reference.picture(p) for p in pixels]).numpy()
        assert np.abs(features - expected).max() <= 1e-4
        assert expected.std() > 0.1
        for ratio in (0.0, 0.5, 0.9):
            pruning = Pruning(ratio=ratio)
            caches = chain.caches([request], [pruning], 4)
            prefill = chain.prefill(caches, 0, request, pruning)
            found, tokens = [prefill.logits], [int(prefill.logits.argmax())]
            for _ in range(3):
                found.append(chain.decode(caches, tokens[-1:])[0])
                tokens.append(int(found[-1].argmax()))
            ids = np.concatenate((request.input_ids, tokens[:-1]))
            pruned = np.zeros(len(ids), dtype=bool)
            pruned[prefill.image_positions] = True
            pruned[prefill.keep_indices] = False
            assert pruned.sum() == len(images) * 256 - pruning.keep_count(len(images) * 256)
            wanted = reference.logits(ids, pixels, pruned, k)[-4:]
            assert np.abs(np.stack(found) - wanted).max() <= 1e-4
            if ratio:  # and what was pruned matters
                full = reference.logits(ids, pixels, np.zeros_like(pruned), k)[-4:]
                assert np.abs(full - wanted).max() > 1e-3


@pytest.mark.families
def test_verify_passes(bundles: Callable[[int], Bundle], folder: Path) -> None:
    report = verify(bundles(2), folder, ratios=(0.0, 0.5, 0.9))
    assert report.passed and {case.images for case in report.cases} == {1, 2}


@pytest.mark.families
def test_what_the_bundle_says(bundles: Callable[[int], Bundle]) -> None:
    manifest = bundles(2).manifest
    assert manifest.tokens.image == (IMG + 2,) and manifest.image_token == "<imgpad>"
    assert manifest.tokens.eos == (len(RANKS), len(RANKS) + 2)  # <|endoftext|> and <|im_end|>
    assert manifest.model.max_positions == CONTEXT  # where dynamic NTK and log-n scaling would begin
    runtime = Runtime.load(bundles(2))
    with pytest.raises(InputError, match=f"context of {CONTEXT}"):
        runtime.generate("what " * CONTEXT, images=[picture(0)])
    one, two = (runtime.processor.render([runtime.processor.user("what?", n)]) for n in (1, 2))
    assert one == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
        "Picture 1: <img><imgpad></img>\nwhat?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "Picture 2: <img><imgpad></img>\n" in two


def tiktoken_ids(piece: bytes) -> list[int]:
    """Byte-pair encoding by ranks: the pair of lowest rank is merged first, again and again."""
    ranks = {token: rank for rank, token in enumerate(RANKS)}
    parts = [bytes([byte]) for byte in piece]
    while True:
        pairs = [(ranks[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ranks]
        if not pairs:
            return [ranks[part] for part in parts]
        i = min(pairs)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def test_the_tokenizer_merges_by_rank(folder: Path) -> None:
    from fastv_trt.families.qwen_tiktoken import load

    tokenizer = load(folder / "qwen.tiktoken", IMG)
    for text, pieces in {
        "what is the colouring": ["what", " is", " the", " colouring"],
        "naïve 42 ächz": ["naïve", " ", "4", "2", " ächz"],
        "ta\u0308t": ["t\u00e4t"],  # composed first
        "图片 12": ["图片", " ", "1", "2"],
        "a\n\n  b, it's": ["a", "\n\n", " ", " b", ",", " it", "'s"],
    }.items():
        assert tokenizer(text)["input_ids"] == [i for piece in pieces for i in tiktoken_ids(piece.encode())]
    marked = tokenizer("<ref>a</ref><img><imgpad></img><|im_end|>")["input_ids"]
    assert marked == [IMG - 6, RANKS.index(b"a"), IMG - 5, IMG, IMG + 2, IMG + 1, len(RANKS) + 2]
    assert tokenizer.decode(marked, skip_special_tokens=True) == "<ref>a</ref>"


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(folder, tmp_path / "checkpoint"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rotary_pct": 0.5}, "rotary_pct 1.0"),
        ({"no_bias": False}, "no_bias True"),
        ({"kv_channels": 128}, "kv_channels 64"),
        ({"visual": None}, "this is a language model"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"quantization_config \(gptq\)"),
    ],
)
def test_variants_that_are_refused(copied: Path, changes: dict[str, Any], message: str) -> None:
    edit(copied, **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        export(copied, copied.parent / "bundle")


def test_a_tokenizer_that_is_missing_or_another(copied: Path) -> None:
    lines = (copied / "qwen.tiktoken").read_text().splitlines()
    for content, message in (
        ("\n".join(lines[:-1]), f"<img> as token {IMG}"),
        ("\n".join(lines[1:]), "found gaps"),
        ("not base64", "a base64 token and its rank"),
    ):
        (copied / "qwen.tiktoken").write_text(content)
        with pytest.raises(InputError, match=message):
            export(copied, copied.parent / "bundle")
    (copied / "qwen.tiktoken").unlink()
    with pytest.raises(InputError, match="expected the tokenizer's file"):
        export(copied, copied.parent / "bundle")


def test_the_full_size_has_the_published_number_of_parameters(copied: Path) -> None:
    """The report's table 1: 1.9 B of ViT, 0.08 B of resampler, 7.7 B of decoder, 9.6 B together."""
    edit(
        copied,
        hidden_size=4096,
        intermediate_size=22016,
        num_hidden_layers=32,
        num_attention_heads=32,
        kv_channels=128,
        seq_length=2048,
        vocab_size=151936,
        visual={
            "heads": 16,
            "image_size": 448,
            "image_start_id": 151857,
            "layers": 48,
            "mlp_ratio": 4.9231,
            "output_dim": 4096,
            "patch_size": 14,
            "width": 1664,
        },
    )
    sizes = measure(copied, 2)
    assert sizes.model.parameters / 1e9 == pytest.approx(9.6, abs=0.06)
    assert sizes.graphs["vision"] / 1e9 == pytest.approx(1.9 + 0.08, abs=0.06)
    assert sizes.model.max_positions == 2048
    assert sizes.refusal is None


@pytest.mark.families
def test_engines_build_in_fp16(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    from fastv_trt.engines import BuildLimits, build, examine

    bundle = export(folder, tmp_path / "bundle", k=2, dtype="fp16").bundle
    limits = BuildLimits.of(bundle.manifest.model, max_prompt=640, max_batch=2, max_images=2, capacity=704)
    report = examine(bundle, limits, ["8.6"])
    assert report.ok, report.lines
    target = build(bundle, limits=limits, compute=["8.6"], name="small")
    assert set(target.manifest.engines) == set(bundle.manifest.graphs)
