"""C++ and Python give the same answers: kept indices and greedy tokens exactly, logits and scores bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastv_trt.bundle import Bundle
from fastv_trt.errors import FastVError
from fastv_trt.pruning import ATTENTION_RANKINGS, Pruning
from fastv_trt.runtime import Chain, Generation, Limits, Request, Sampling, ort

Requests = dict[str, tuple[Request, Path]]
Cases = Callable[[Path, list[dict[str, Any]]], list[Any]]
RATIOS = (0.0, 0.5, 0.75)


def case(
    requests: Requests, names: Sequence[str], *pruning: dict[str, Any], turns: Sequence[str] = ()
) -> dict[str, Any]:
    return {
        "names": list(names),
        "inputs": [str(requests[name][1]) for name in names],
        "pruning": list(pruning),
        "new_tokens": 6,
        "stop": [],
        "later": list(turns),
        "turns": [str(requests[name][1]) for name in turns],
    }


def in_python(chain: Chain, requests: Requests, given: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """What the same case gives in Python: per turn, per row."""
    prunings = [Pruning(**one) for one in given["pruning"]] * (len(given["names"]) // len(given["pruning"]))
    limits = Limits(given["new_tokens"], stop=None if given["stop"] is None else tuple(given["stop"]))
    batch, caches, turns = [requests[name][0] for name in given["names"]], None, []
    for later in [None, *given["later"]]:
        if later is not None:
            batch = [requests[later][0].after([turns[-1][0]["tokens"][-1]])]
        done = Generation.start(chain, batch, prunings, limits, Sampling(), caches).finish()
        caches = done.caches
        turns.append(
            [
                {
                    "tokens": done.tokens[row],
                    "keep_indices": prefill.keep_indices.tolist(),
                    "logits": prefill.logits,
                    "scores": prefill.scores,
                    "notes": list(prefill.notes),
                    "kv_bytes": done.caches.bytes,
                }
                for row, prefill in enumerate(done.prefills)
            ]
        )
    return turns


def compare(bundle: Bundle, requests: Requests, cases: Cases, given: list[dict[str, Any]]) -> None:
    chain = Chain(bundle, ort.device(bundle))
    for case, found in zip(given, cases(bundle.path, given), strict=True):
        expected = in_python(chain, requests, case)
        assert len(found) == len(expected)
        for turn, wanted in zip(found, expected, strict=True):
            for row, want in zip(turn, wanted, strict=True):
                for name in ("tokens", "keep_indices", "notes", "kv_bytes"):
                    assert row[name] == want[name], (case["names"], case["pruning"], name)
                np.testing.assert_array_equal(np.float32(row["logits"]), want["logits"])
                assert (row["scores"] is None) == (want["scores"] is None)
                if want["scores"] is not None:
                    np.testing.assert_array_equal(np.float32(row["scores"]), want["scores"])


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_answers_over_k_and_r(k: int, bundles: Callable[[int], Bundle], requests: Requests, cases: Cases) -> None:
    """One and two pictures, and a batch of three of different lengths and ratios, at every K and R."""
    ranking = {"ranking": "random", "seed": 5} if k == 0 else {"ranking": "last-query"}
    given = []
    for ratio in RATIOS:
        policy = {"ratio": ratio, **ranking}
        given.append(case(requests, ["white"], policy))
        given.append(case(requests, ["two"], policy))
        given.append(case(requests, ["red", "two", "green"], policy))
    given.append(case(requests, ["red", "text", "two"], *({"ratio": ratio, **ranking} for ratio in RATIOS)))
    compare(bundles(k), requests, cases, given)


def test_rankings_scopes_and_counts(demo: Bundle, requests: Requests, cases: Cases) -> None:
    policies = [{"ratio": 0.6, "ranking": ranking} for ranking in (*ATTENTION_RANKINGS, "random", "uniform")]
    policies += [{"keep": 31, "scope": "image"}, {"ratio": 0.5, "scope": "image", "ranking": "uniform"}]
    policies += [{"keep": 0}, {"keep": 1000}, {"ratio": 1.0, "ranking": "received"}]
    compare(demo, requests, cases, [case(requests, ["two"], policy) for policy in policies])


def test_what_is_not_computed_here_says_so(demo: Bundle, requests: Requests, cases: Cases) -> None:
    found = cases(demo.path, [case(requests, ["white"], {"ratio": 0.5, "ranking": "diversity"})])[0]
    assert "expected a ranking that this library computes, found 'diversity'" in found["error"]


def test_later_turns(demo: Bundle, requests: Requests, cases: Cases) -> None:
    """What the first turn pruned stays pruned, and the caches grow."""
    given = [case(requests, ["red"], {"ratio": r}, turns=["later", "text"]) for r in RATIOS]
    compare(demo, requests, cases, given)


def test_stop_tokens(demo: Bundle, requests: Requests, cases: Cases) -> None:
    """The model's own end rows one by one, while the others go on."""
    given = case(requests, ["red", "two", "text"], {"ratio": 0.5})
    compare(demo, requests, cases, [given | {"stop": None, "new_tokens": 12}])


def test_refused_requests_say_the_same(demo: Bundle, requests: Requests, cases: Cases) -> None:
    """An over-long prompt, a ranking that is not there, and other requests that cannot be."""
    given = [
        case(requests, ["white"], {"ratio": 0.5}) | {"new_tokens": 100000},
        case(requests, ["white"], {"ratio": 0.5}) | {"new_tokens": 0},
        case(requests, ["text"], {"ratio": 0.5, "required": True}),
        case(requests, ["white"], {"ratio": 0.5, "ranking": "external"}),
        case(requests, ["white"], {"ratio": 1.5}),
        case(requests, ["white"], {"ratio": 0.5, "keep": 3}),
    ]
    chain = Chain(demo, ort.device(demo))
    for one, found in zip(given, cases(demo.path, given), strict=True):
        with pytest.raises(FastVError) as refused:
            in_python(chain, requests, one)
        assert found == {"error": str(refused.value), "exit_code": refused.value.exit_code}


def test_attention_rankings_at_k_0_say_the_same(
    bundles: Callable[[int], Bundle], requests: Requests, cases: Cases
) -> None:
    given = case(requests, ["white"], {"ratio": 0.5})
    with pytest.raises(FastVError) as refused:
        in_python(Chain(bundles(0), ort.device(bundles(0))), requests, given)
    assert cases(bundles(0).path, [given])[0]["error"] == str(refused.value)
