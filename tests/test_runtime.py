"""The runtime: counters, caches, batches, turns, limits. Everything runs on real graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fastv_trt.bundle import Bundle
from fastv_trt.errors import InputError
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Limits, Request, Runtime, Sampling
from fastv_trt.runtime.generation import Generation
from tests.conftest import LAYERS, picture

FOREVER = Limits(8, stop=())


def written(runtime: Runtime, generation: Generation, layer: int) -> int:
    """Filled slots of a layer's key cache, counted in the memory itself."""
    keys = runtime.chain.device.download(generation.caches.layers[layer][0])
    return int(np.flatnonzero(np.abs(keys[0]).sum(axis=(0, 2)))[-1]) + 1


@pytest.mark.parametrize("k", [0, 1, 2, LAYERS - 1])
def test_layers_before_k_cache_all_and_layers_from_k_only_what_is_kept(bundles: Callable[..., Bundle], k: int) -> None:
    runtime = Runtime.load(bundles(k=k))
    request = runtime.request("what?", [picture(0)])
    pruning = Pruning(ratio=0.75, ranking="last-query" if k else "random")
    generation = Generation.start(runtime.chain, [request], pruning, Limits(4, stop=()), Sampling()).finish()
    length, kept = len(request.input_ids), len(generation.prefills[0].keep_indices)
    assert kept == length - 25 + 6
    # Prefill, and the first three of four new tokens: the fourth was generated but not read.
    assert [written(runtime, generation, layer) for layer in range(LAYERS)] == [
        length + 3 if layer < k else kept + 3 for layer in range(LAYERS)
    ]
    row = generation.caches.rows[0]
    assert (row.position, row.prefix_length, row.suffix_length) == (length + 3, length + 3, kept + 3)
    assert [pair[0].shape[2] for pair in generation.caches.layers] == [
        length + 4 if layer < k else kept + 4 for layer in range(LAYERS)
    ]


def test_requests_of_different_lengths_decode_together_as_alone(runtime: Runtime) -> None:
    requests = [
        runtime.request("a", [picture(1)]),
        runtime.request("a rather longer question?", [picture(2), picture(3)]),
        runtime.request("no picture at all"),
    ]
    policies = [Pruning(ratio=0.5), Pruning(ratio=0.9, ranking="received"), Pruning(ratio=0.5)]
    together = runtime.answers(requests, policies, FOREVER)
    alone = [runtime.answers([r], p, FOREVER)[0] for r, p in zip(requests, policies, strict=True)]
    assert [a.tokens for a in together] == [a.tokens for a in alone]
    assert [a.kept_tokens for a in together] == [12, 5, 0]
    for a, b in zip(together, alone, strict=True):
        assert np.abs(a.prefill.logits - b.prefill.logits).max() <= 1e-5


def test_a_row_that_stops_early_does_not_disturb_the_others(runtime: Runtime) -> None:
    requests = [runtime.request("first", [picture(4)]), runtime.request("second one", [picture(5)])]
    free = runtime.answers(requests, Pruning(ratio=0.5), FOREVER)
    stop = free[0].tokens[2]
    limited = runtime.answers(requests, Pruning(ratio=0.5), Limits(8, stop=(stop,)))
    for before, after in zip(free, limited, strict=True):
        end = before.tokens.index(stop) + 1 if stop in before.tokens else 8
        assert after.tokens == before.tokens[:end]


def test_a_second_turn_equals_one_long_prompt_when_nothing_is_pruned(runtime: Runtime) -> None:
    talk = runtime.conversation(Pruning(ratio=0))
    first = talk.ask("what?", [picture(6)], limits=Limits(3, stop=()))
    second = talk.ask("and?", [picture(7)], limits=FOREVER)
    processor = runtime.processor
    start = processor.request(processor.render([processor.user("what?", 1)]), [picture(6)])
    # What the template of these checkpoints puts between an answer and the next one, written out.
    rest = processor.request("</s>user: <image>\nand? assistant:", [picture(7)], continuing=True)
    ids = np.concatenate((start.input_ids, first.tokens, rest.input_ids))
    pixels = np.concatenate((start.vision_inputs["pixel_values"], rest.vision_inputs["pixel_values"]))
    once = runtime.answers([Request(ids, {"pixel_values": pixels}, (25, 25))], Pruning(ratio=0), FOREVER)[0]
    assert second.prefill.image_tokens == 25
    assert second.tokens == once.tokens
    assert np.abs(second.prefill.logits - once.prefill.logits).max() <= 1e-4


def test_a_second_turn_ranks_only_its_own_image(runtime: Runtime) -> None:
    talk = runtime.conversation(Pruning(ratio=0.5))
    talk.ask("what?", [picture(6)], limits=Limits(2, stop=()))
    before = talk._caches.rows[0].suffix_length if talk._caches else 0
    second = talk.ask("and?", [picture(7)], limits=Limits(2, stop=()))
    assert (second.image_tokens, second.kept_tokens) == (25, 12)
    assert talk._caches is not None
    assert talk._caches.rows[0].suffix_length == before + len(second.keep_indices) + 1
    third = talk.ask("so?", limits=Limits(2, stop=()))
    assert third.image_tokens == 0


def test_a_stop_token_that_ended_an_answer_is_not_read_twice(runtime: Runtime) -> None:
    free = runtime.conversation(Pruning(ratio=0)).ask("what?", limits=Limits(1, stop=()))
    end = free.tokens[0]
    talk = runtime.conversation(Pruning(ratio=0))
    talk.ask("what?", limits=Limits(1, stop=(end,)))
    talk._pending = [2]  # as if the model had said </s>, which the template writes after every answer
    again = talk.ask("and?", limits=Limits(1))
    processor = runtime.processor
    alone = processor.request("</s>user: and? assistant:", continuing=True)
    assert again.prefill.prompt_tokens == len(alone.input_ids)


def test_one_request_cannot_see_another(runtime: Runtime) -> None:
    """The same request before and after others gives the same bits."""
    request = runtime.request("same", [picture(8)])
    first = runtime.answers([request], Pruning(ratio=0.5), FOREVER)[0]
    runtime.answers([runtime.request("another, longer than the first", [picture(9)])], Pruning(ratio=0), FOREVER)
    again = runtime.answers([request], Pruning(ratio=0.5), FOREVER)[0]
    assert np.array_equal(first.prefill.logits, again.prefill.logits)
    assert first.tokens == again.tokens


def test_scores_outlive_their_runtime(bundle: Bundle) -> None:
    runtime = Runtime.load(bundle)
    answer = runtime.generate("what?", [picture(0)], limits=Limits(2))
    before = answer.prefill.logits.copy()
    del runtime
    assert np.array_equal(before, answer.prefill.logits)
    assert answer.scores is not None and answer.scores.shape == (25,)


def test_a_text_only_prompt_says_that_nothing_was_pruned(runtime: Runtime) -> None:
    answer = runtime.generate("hello", pruning=Pruning(ratio=0.5), limits=Limits(2))
    assert (answer.image_tokens, answer.kept_tokens) == (0, 0)
    assert "nothing was pruned" in answer.prefill.notes[0]
    with pytest.raises(InputError, match="required"):
        runtime.generate("hello", pruning=Pruning(ratio=0.5, required=True), limits=Limits(2))


def test_an_image_token_at_the_end_is_pointed_out(runtime: Runtime) -> None:
    answer = runtime.generate("what is this <image>", [picture(0)], raw=True, limits=Limits(1))
    assert any("last prompt token is an image token" in note for note in answer.prefill.notes)


def test_keeping_no_image_token_is_legal(runtime: Runtime) -> None:
    answer = runtime.generate("what?", [picture(0)], pruning=Pruning(keep=0), limits=FOREVER)
    assert answer.kept_tokens == 0
    assert len(answer.tokens) == 8


def test_external_scores_choose(runtime: Runtime) -> None:
    request = runtime.request("what?", [picture(0)])
    scores = np.zeros(25, dtype=np.float32)
    scores[[3, 11]] = 1.0
    given = Request(request.input_ids, request.vision_inputs, request.image_sizes, scores)
    answer = runtime.answers([given], Pruning(keep=2, ranking="external"), Limits(1))[0]
    kept = set(answer.keep_indices) & set(answer.prefill.image_positions)
    assert kept == set(answer.prefill.image_positions[[3, 11]])
    with pytest.raises(InputError, match=r"external scores of shape \[25\], found none"):
        runtime.answers([request], Pruning(keep=2, ranking="external"), Limits(1))


def test_a_share_per_image_leaves_none_out(runtime: Runtime) -> None:
    request = runtime.request("what?", [picture(1), picture(2)])
    answer = runtime.answers([request], Pruning(ratio=0.8, scope="image"), Limits(1))[0]
    kept = np.isin(answer.prefill.image_positions, answer.keep_indices)
    assert (kept[:25].sum(), kept[25:].sum()) == (5, 5)


def test_sampling_is_repeatable_and_follows_the_seed(runtime: Runtime) -> None:
    request = runtime.request("what?", [picture(0)])
    draws = [
        runtime.answers([request], Pruning(ratio=0.5), FOREVER, Sampling(temperature=2.0, seed=seed))[0].tokens
        for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.generate("what?", [picture(0)], pruning=Pruning(ratio=0.5), limits=Limits(500)), "context of 256"),
        (lambda r: r.generate("x" * 300), "context of 256"),
        (lambda r: r.generate("<image> what?"), "found 0 for 1"),
        (lambda r: r.generate("what?", [picture(0)], raw=True), "found 1 for 0"),
        (lambda r: r.generate("<image><image> what?", [picture(0)]), "found 1 for 2"),
        (lambda r: r.generate("what \udcff?"), "not UTF-8"),
        (lambda r: r.generate("what?", [b"bytes"]), "as picture, found bytes"),
        (lambda r: r.generate("what?", "a.png"), "a list of images, found str"),
        (lambda r: r.answers([]), "found none"),
        (lambda r: r.answers([Request(np.zeros(0, np.int64))]), "found an empty one"),
        (lambda r: r.answers([Request(np.array([1, 4, 5]))]), "found 1 placeholders"),
        (lambda r: r.answers([Request(np.array([1, 5000]))]), "token ids in 0..260, found 1 to 5000"),
        (lambda r: r.answers([Request(np.array([-1, 5]))]), "token ids in 0..260, found -1 to 5"),
        (
            lambda r: r.answers([Request(np.full(25, 4), {"pixel_values": np.zeros((1, 3, 8, 8))}, (25,))]),
            r"shape \['I', 3, 40, 40\], found \[1, 3, 8, 8\]",
        ),
        (
            lambda r: r.answers([Request(np.full(5, 4), {"pixel_values": np.zeros((1, 3, 40, 40))}, (5,))]),
            "found 25 features for 5",
        ),
        (lambda r: r.answers([Request(np.full(25, 4), {"pixels": np.zeros(1)}, (25,))]), "expected pixel_values"),
        (lambda r: r.answers([Request(np.array([1, 2]))], [Pruning(), Pruning()]), "one pruning policy per request"),
    ],
)
def test_what_does_not_fit_is_refused(runtime: Runtime, call: Callable[[Runtime], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(runtime)


def test_a_ranking_that_was_not_exported_is_refused(
    checkpoints: Callable[..., object], bundles: Callable[..., Bundle], tmp_path: object
) -> None:
    runtime = Runtime.load(bundles(k=0))
    with pytest.raises(InputError, match="K=0, found 'last-query'"):
        runtime.generate("what?", [picture(0)], pruning=Pruning(ratio=0.5))
    # Nothing is ranked at R = 0, so the default ranking is no mistake there.
    assert runtime.generate("what?", [picture(0)], pruning=Pruning(ratio=0), limits=Limits(1)).kept_tokens == 25


def test_caches_grow_and_keep_what_is_written(runtime: Runtime) -> None:
    request = runtime.request("what?", [picture(0)])
    generation = Generation.start(runtime.chain, [request], Pruning(ratio=0.5), Limits(2, stop=()), Sampling()).finish()
    caches = generation.caches
    before = [runtime.chain.device.download(pair[1]) for pair in caches.layers]
    caches.reserve(caches.prefix_capacity + 5, caches.suffix_capacity)
    after = [runtime.chain.device.download(pair[1]) for pair in caches.layers]
    used = caches.rows[0]
    for layer, (old, new) in enumerate(zip(before, after, strict=True)):
        slots = used.prefix_length if layer < 2 else used.suffix_length
        assert np.array_equal(old[:, :, :slots], new[:, :, :slots])
        assert new.shape[2] - old.shape[2] == (5 if layer < 2 else 0)
    with pytest.raises(InputError, match="reserve more"):
        caches.require(caches.prefix_capacity + 1, 1)


def test_the_runtime_gives_text_as_it_comes(runtime: Runtime) -> None:
    request = runtime.request("what?", [picture(0)])
    stream = runtime.stream(request, Pruning(ratio=0.5), FOREVER)
    pieces = list(stream)
    assert "".join(pieces).strip() == stream.answer.text.rstrip("�").strip() or stream.answer.text.endswith("�")
    assert set(stream.answer.timings) == {"preprocess", "vision", "prefix", "rank+select", "suffix", "decode"}
