"""The bundle's numbers against the checkpoint's own, through oracles that share no code with the exporter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fastv_trt.bundle import Bundle
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Limits, Runtime
from fastv_trt.verify import verify
from fastv_trt.verify.oracle import Oracle
from tests.conftest import LAYERS, picture

Bundles = Callable[..., Bundle]
Checkpoints = Callable[..., Path]


@pytest.mark.parametrize(
    ("decoder", "tower", "k"),
    [
        ("llama", "clip", 1),
        ("llama", "clip", 2),
        ("llama", "clip", LAYERS - 1),
        ("qwen2", "siglip", 2),
        ("mistral", "clip", 2),
    ],
)
def test_every_decoder_matches_its_checkpoint(
    bundles: Bundles, checkpoints: Checkpoints, decoder: str, tower: str, k: int
) -> None:
    report = verify(bundles(decoder, tower, k), checkpoints(decoder, tower))
    assert {case.images for case in report.cases} == {1, 2}
    assert {case.ratio for case in report.cases} == {0.0, 0.25, 0.5, 0.75, 0.9, 1.0}
    assert max(case.logit for case in report.cases) <= 1e-4
    assert min(case.cosine for case in report.cases) >= 0.99999
    assert all(case.same_kept for case in report.cases)
    assert all(case.same_tokens == 32 for case in report.cases if case.ratio == 0.0)
    assert max(b.prefix for b in report.boundaries) <= 1e-4
    assert max(b.vision for b in report.boundaries) <= 1e-4
    assert report.passed


def test_every_ranking_matches_its_reference(checkpoints: Checkpoints, tmp_path: Path) -> None:
    """All rank graphs against NumPy on the checkpoint's own activations (verify/rankings.py)."""
    from fastv_trt.export import export
    from fastv_trt.pruning import ATTENTION_RANKINGS

    checkpoint = checkpoints("qwen2", "siglip")
    bundle = export(checkpoint, tmp_path / "b", k=2).bundle
    assert bundle.manifest.rankings == ATTENTION_RANKINGS
    report = verify(bundle, checkpoint, ratios=(0.5, 0.9), rankings=(*ATTENTION_RANKINGS, "diversity"))
    assert {case.ranking for case in report.cases} == {*ATTENTION_RANKINGS, "diversity"}
    assert all(case.same_kept and case.logit <= 1e-4 for case in report.cases)
    assert max(case.score or 0.0 for case in report.cases) <= 1e-5
    assert report.passed

    runtime = Runtime.load(bundle)  # a later turn: new image tokens stand behind those of the first
    for ranking in ("dart", "last-query-norope"):
        talk = runtime.conversation(Pruning(keep=6, ranking=ranking))
        talk.ask("what?", [picture(1)], limits=Limits(2))
        assert talk.ask("and?", [picture(2)], limits=Limits(2)).kept_tokens == 6


def test_pruning_before_layer_0_matches_too(bundles: Bundles, checkpoints: Checkpoints) -> None:
    report = verify(bundles(k=0), checkpoints())
    assert {case.ranking for case in report.cases if case.ratio} == {"random", "uniform"}
    assert report.passed


def test_a_head_size_that_is_not_the_quotient_matches(checkpoints: Checkpoints, tmp_path: Path) -> None:
    from fastv_trt.export import export

    checkpoint = checkpoints("llama", head_dim=24, attention_bias=True, tie_word_embeddings=True)
    bundle = export(checkpoint, tmp_path / "b", k=2).bundle
    assert bundle.manifest.model.head_size == 24
    assert verify(bundle, checkpoint, ratios=(0.0, 0.5)).passed


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn", "dynamic"])
def test_scaled_rope_matches(checkpoints: Checkpoints, tmp_path: Path, kind: str) -> None:
    from fastv_trt.export import export

    rope = {
        "rope_type": kind,
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    wanted = {
        "linear": ("rope_type", "rope_theta", "factor"),
        "dynamic": ("rope_type", "rope_theta", "factor"),
        "yarn": ("rope_type", "rope_theta", "factor", "original_max_position_embeddings"),
    }.get(kind, tuple(rope))
    folder = tmp_path / "checkpoint"
    from tests.conftest import save_checkpoint

    save_checkpoint(folder, "llama", rope_parameters={name: rope[name] for name in wanted})
    bundle = export(folder, tmp_path / "b", k=2).bundle
    assert verify(bundle, folder, ratios=(0.0, 0.5)).passed


def test_fp16_stays_close_to_fp32(bundles: Bundles, checkpoints: Checkpoints) -> None:
    report = verify(bundles(dtype="fp16"), checkpoints(), ratios=(0.0, 0.5, 0.9))
    assert min(case.cosine for case in report.cases) >= 0.999
    assert max(case.norm for case in report.cases) <= 0.02
    assert report.passed


def test_verify_sees_a_wrong_bundle(bundles: Bundles, tmp_path: Path) -> None:
    """Against another checkpoint of the same shape the same bundle must fail: the oracle can tell."""
    import torch

    from tests.conftest import save_checkpoint

    other = save_checkpoint(tmp_path / "other", "llama")
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(other)
    with torch.no_grad():
        model.model.language_model.layers[-1].mlp.down_proj.weight[0, 0] += 0.5
    model.save_pretrained(other)
    report = verify(bundles(), other, ratios=(0.0, 0.5))
    assert not report.passed


def test_the_oracle_agrees_with_dropping_the_tokens(checkpoints: Checkpoints, runtime: Runtime) -> None:
    """The mask oracle against a second one: transformers' own layers on the gathered rows."""
    import torch

    oracle = Oracle(checkpoints(), 2, "fp32")
    request = runtime.request("what?", [picture(3)])
    answer = runtime.answers([request], Pruning(ratio=0.75), Limits(1))[0]
    pruned = np.zeros(len(request.input_ids), dtype=bool)
    pruned[answer.prefill.image_positions] = True
    pruned[answer.keep_indices] = False
    inputs = oracle.inputs(runtime.processor.outputs([picture(3)]))
    masked = oracle.forward(request.input_ids, inputs, pruned)

    keep = torch.from_numpy(answer.keep_indices)
    text = oracle.model.get_decoder()
    with torch.no_grad():
        hidden = torch.from_numpy(masked.hidden)[keep][None]
        positions = keep[None]
        count = len(keep)
        mask = torch.full((count, count), torch.finfo(torch.float32).min).triu(1)[None, None]
        for layer in text.layers[2:]:
            hidden = layer(
                hidden,
                attention_mask=mask,
                position_ids=positions,
                position_embeddings=text.rotary_emb(hidden, positions),
            )
        logits = oracle.model.get_output_embeddings()(text.norm(hidden))[0, -1].numpy()
    assert np.abs(logits - masked.logits[0]).max() <= 1e-5
    assert np.abs(logits - answer.prefill.logits).max() <= 1e-4
