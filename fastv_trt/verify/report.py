"""Run the oracles over a grid of prompts, ratios and rankings, and judge the differences."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastv_trt import __version__
from fastv_trt.bundle import Bundle, VerificationRecord
from fastv_trt.errors import InputError
from fastv_trt.families import Clip
from fastv_trt.pruning import ATTENTION_RANKINGS, FREE_RANKINGS, Pruning, select
from fastv_trt.runtime import Request, Runtime
from fastv_trt.runtime.chain import Chain, Prefill
from fastv_trt.runtime.images import ImageLike
from fastv_trt.runtime.processing import Processor
from fastv_trt.verify.oracle import Oracle, Seen, best
from fastv_trt.verify.prompts import noise, request_of
from fastv_trt.verify.rankings import scores

RATIOS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
GREEDY_TOKENS = 32
DECODE_STEPS = 4


@dataclass(frozen=True)
class Tolerance:
    """What still counts as equal. Cosine and norm together: cosine alone hides a dropped scale.

    Attributes:
        logit: largest absolute logit difference; None where the dtype's rounding sets no useful bound.
        cosine: smallest cosine of two logit vectors.
        norm: largest |norm ratio - 1|.
        score: scores closer than this, relative to the largest one, are a tie that may fall either way.
    """

    logit: float | None
    cosine: float
    norm: float
    score: float

    @classmethod
    def of(cls, dtype: str) -> Tolerance:
        if dtype == "fp32":
            return cls(logit=1e-4, cosine=0.99999, norm=1e-4, score=1e-5)
        return cls(logit=None, cosine=0.999, norm=0.02, score=0.05)


@dataclass(frozen=True)
class Boundary:
    """Largest absolute differences of one prompt where no pruning is involved yet."""

    images: int
    vision: float
    prefix: float


@dataclass(frozen=True)
class Case:
    """One prompt at one operating point, against the oracle.

    Attributes:
        images: number of images in the prompt.
        kept: image tokens kept, of `image_tokens`.
        same_kept: whether the kept set is the one that the oracle's own scores choose (ties aside).
        score: largest absolute difference of the image tokens' scores; None where there are none.
        logit: largest absolute difference of the logits, at prefill and at every decode step after it.
        cosine, norm: worst of those logit vectors: cosine, and |norm ratio - 1|.
        same_tokens: greedy tokens equal to the unmodified model's, of `GREEDY_TOKENS`; only at R = 0.
    """

    images: int
    ratio: float
    ranking: str
    image_tokens: int
    kept: int
    same_kept: bool
    score: float | None
    logit: float
    cosine: float
    norm: float
    same_tokens: int | None

    def passed(self, tolerance: Tolerance) -> bool:
        """Whether every figure is within the tolerance. NaN is not."""
        return (
            self.same_kept
            and (tolerance.logit is None or self.logit <= tolerance.logit)
            and self.cosine >= tolerance.cosine
            and self.norm <= tolerance.norm
            and (self.same_tokens is None or tolerance.logit is None or self.same_tokens == GREEDY_TOKENS)
        )


@dataclass(frozen=True)
class Report:
    """All cases of one verification."""

    boundaries: tuple[Boundary, ...]
    cases: tuple[Case, ...]
    tolerance: Tolerance

    @property
    def passed(self) -> bool:
        return all(case.passed(self.tolerance) for case in self.cases)

    def record(self) -> VerificationRecord:
        """The worst figures, for the manifest."""
        same = [case.same_tokens for case in self.cases if case.same_tokens is not None]
        return VerificationRecord(
            tool=f"fastv-trt {__version__}",
            device="cpu",
            cases=len(self.cases),
            max_abs_logit_difference=max(case.logit for case in self.cases),
            min_cosine=min(case.cosine for case in self.cases),
            max_norm_ratio_error=max(case.norm for case in self.cases),
            greedy_tokens_identical=min(same) if same else None,
            passed=self.passed,
        )


def verify(
    bundle: Bundle,
    checkpoint: str | os.PathLike[str],
    *,
    ratios: Sequence[float] = RATIOS,
    rankings: Sequence[str] | None = None,
    prompt: str = "Describe the image.",
    images: Sequence[ImageLike] = (),
    videos: Sequence[Clip] = (),
    threads: int | None = None,
    allow_pickle: bool = False,
    on_case: Callable[[Case, int, int], None] = lambda case, done, total: None,
) -> Report:
    """Compare a bundle on ONNX Runtime's CPU with the checkpoint that it was exported from.

    Args:
        rankings: by default all that the bundle offers, random and uniform included.
        prompt: a question; it goes through the chat template if there is one.
        images: pictures of the question; by default one, then two, made from seeded noise.
        allow_pickle: read the checkpoint's `.bin` files if it has no safetensors.
        videos: clips of the question.
        on_case: called with each case as it is done, their count so far and in all.

    Raises:
        InputError: the checkpoint is not this bundle's, or the bundle cannot run on the CPU.
    """
    manifest = bundle.manifest
    if manifest.quantization is not None:
        raise InputError(
            f"expected a floating-point bundle, found {bundle.path} quantized to {manifest.quantization.scheme}, which "
            "does not equal its checkpoint; verify the one that it came from, and let quantize's gate judge this one"
        )
    runtime = Runtime.load(bundle, threads=threads)
    names = tuple(rankings) if rankings is not None else (*manifest.rankings, "random", "uniform")
    # Nothing is ranked at R = 0, so one ranking stands for all.
    points = [Pruning(ratio=ratio, ranking=name) for ratio in ratios for name in (names if ratio else names[:1])]
    for point in points:
        if point.ranking not in FREE_RANKINGS:
            runtime.chain.check_ranking(point.ranking)
    oracle = Oracle(checkpoint, manifest.k, manifest.dtype, allow_pickle)
    if len(oracle.layers) != manifest.model.layers:
        raise InputError(
            f"expected the checkpoint that {bundle.path} was exported from ({manifest.model.layers} layers), "
            f"found {len(oracle.layers)} layers in {checkpoint}"
        )
    media: list[tuple[Sequence[ImageLike], Sequence[Clip]]] = [(images, videos)]
    if not images and not videos:
        media = [([noise(0)], [])] if runtime.processor.family.front else [([noise(0)], []), ([noise(1), noise(2)], [])]
    samples = [Sample.of(runtime.processor, oracle, prompt, *each) for each in media]
    limit = manifest.model.max_positions - GREEDY_TOKENS
    samples = [sample for sample in samples if len(sample.request.input_ids) <= limit]
    if not samples:
        raise InputError(f"expected a prompt of at most {limit} tokens for this model's context, found a longer one")
    cases: list[Case] = []
    boundaries: list[Boundary] = []
    for sample in samples:
        plain = oracle.forward(sample.request.input_ids, sample.inputs)
        boundaries.append(_boundary(runtime.chain, oracle, sample, plain))
        for point in points:
            case = _case(runtime.chain, oracle, sample, plain, point)
            cases.append(case)
            on_case(case, len(cases), len(points) * len(samples))
    return Report(tuple(boundaries), tuple(cases), Tolerance.of(manifest.dtype))


@dataclass(frozen=True)
class Sample:
    """One prompt: for the product, and with the same pixels for the checkpoint's own model."""

    request: Request
    inputs: dict[str, Any]

    @classmethod
    def of(
        cls,
        processor: Processor,
        oracle: Oracle,
        prompt: str,
        images: Sequence[ImageLike],
        videos: Sequence[Clip] = (),
    ) -> Sample:
        request = request_of(processor, prompt, images, videos)
        outputs = [*processor.outputs(images), *processor.video_outputs(videos)]
        return cls(request, oracle.inputs(outputs, request.vision_inputs.get("prompt_ids")))


def _boundary(chain: Chain, oracle: Oracle, sample: Sample, plain: Seen) -> Boundary:
    request = sample.request
    features = chain.features(request, sum(request.image_sizes))
    caches = chain.caches([request], [Pruning()], 1)
    hidden, _ = chain.prefix(caches, 0, request, features)
    return Boundary(
        images=len(request.image_sizes),
        vision=_distance(oracle.image_features(sample.inputs), chain.device.download(features["image_features"])),
        prefix=_distance(plain.hidden, chain.device.download(hidden)[0]),
    )


def _case(chain: Chain, oracle: Oracle, sample: Sample, plain: Seen, pruning: Pruning) -> Case:
    """Run the product, then the reference with the product's kept set hidden, and compare."""
    request = sample.request
    steps = DECODE_STEPS if pruning.asked else GREEDY_TOKENS - 1
    caches = chain.caches([request], [pruning], steps)
    prefill = chain.prefill(caches, 0, request, pruning)
    never = chain.manifest.tokens.image
    logits, tokens = [prefill.logits], [best(prefill.logits, never)]
    for _ in range(steps):
        logits.append(chain.decode(caches, tokens[-1:])[0])
        tokens.append(best(logits[-1], never))

    ids = np.concatenate((request.input_ids, np.asarray(tokens[:-1], dtype=np.int64)))
    pruned = np.zeros(len(ids), dtype=bool)
    pruned[prefill.image_positions] = True
    pruned[prefill.keep_indices] = False
    masked = oracle.forward(ids, sample.inputs, pruned, last=len(tokens)).logits
    same_kept, score = _selection(pruning, request, prefill, plain, Tolerance.of(chain.manifest.dtype).score)
    same_tokens = None
    if not pruning.asked:
        expected = oracle.greedy(request.input_ids, sample.inputs, GREEDY_TOKENS, never)
        equal = [a == b for a, b in zip(expected, tokens, strict=True)]
        same_tokens = equal.index(False) if False in equal else GREEDY_TOKENS
    pairs = list(zip(masked, logits, strict=True))
    return Case(
        images=len(request.image_sizes),
        ratio=float(pruning.ratio or 0.0),
        ranking=pruning.ranking,
        image_tokens=prefill.image_tokens,
        kept=prefill.kept_tokens,
        same_kept=same_kept,
        score=score,
        logit=max(_distance(a, b) for a, b in pairs),
        cosine=min(float(np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in pairs),
        norm=max(abs(float(np.linalg.norm(b) / np.linalg.norm(a)) - 1.0) for a, b in pairs),
        same_tokens=same_tokens,
    )


def _selection(
    pruning: Pruning, request: Request, prefill: Prefill, plain: Seen, tie: float
) -> tuple[bool, float | None]:
    """Whether the kept set is right, and how far the scores are from the oracle's.

    A token may stand on the wrong side of the cut only if its score is within `tie` (relative to the largest
    score) of the cut.
    """
    if not pruning.asked or pruning.ranking not in ATTENTION_RANKINGS:
        kept = [int(i) for i in prefill.keep_indices]
        text = len(request.input_ids) - prefill.image_tokens
        return kept == sorted(set(kept)) and len(kept) == text + pruning.kept_tokens(
            request.groups(pruning.scope)
        ), None
    assert prefill.scores is not None
    own = scores(plain, pruning.ranking, prefill.image_positions)
    wanted = select(pruning, len(request.input_ids), prefill.image_positions, request.groups(pruning.scope), own)
    swapped = np.setxor1d(wanted, prefill.keep_indices)
    by_position = dict(zip(prefill.image_positions.tolist(), own.tolist(), strict=True))
    kept_scores = [by_position[p] for p in wanted.tolist() if p in by_position]
    cut = min(kept_scores) if kept_scores else 0.0
    largest = float(np.abs(own).max())
    near = all(p in by_position and abs(by_position[p] - cut) <= tie * largest for p in swapped.tolist())
    return near and len(wanted) == len(prefill.keep_indices), _distance(own, prefill.scores)


def _distance(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Largest absolute difference; NaN if either has one."""
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max())
