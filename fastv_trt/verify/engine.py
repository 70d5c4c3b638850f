"""Engines against ONNX Runtime, graph by graph, each on the inputs that the other one had.

ONNX Runtime runs the chain; a mirror behind each of its sessions gives the same inputs to the engine and compares what
comes out. So a difference names the graph that made it, and does not grow from one graph to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastv_trt import __version__
from fastv_trt.bundle import Bundle
from fastv_trt.errors import InputError
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Runtime
from fastv_trt.runtime.chain import Chain, Request
from fastv_trt.runtime.images import ImageLike
from fastv_trt.runtime.tensor import Device, Session, Tensor
from fastv_trt.targets import LimitsRecord, SelfTestRecord
from fastv_trt.verify.prompts import noise, request_of

RATIOS = (0.0, 0.5, 0.9)
DECODE_STEPS = 4
"""The first step of a kind runs plainly, the second is captured, later ones launch the captured graph."""


@dataclass(frozen=True)
class Difference:
    """One output of one graph over all its calls of one kind, engine against ONNX Runtime.

    Attributes:
        graph, kind, output: which: "suffix", "decode", "logits". Caches are compared as one, "caches".
        calls: how often it was compared.
        cosine: smallest cosine.
        norm: largest |norm ratio - 1|. Both together: cosine alone hides a dropped scale.
        largest: largest absolute difference.
    """

    graph: str
    kind: str
    output: str
    calls: int
    cosine: float
    norm: float
    largest: float


@dataclass(frozen=True)
class EngineReport:
    """All differences of one target, and what still counts as equal.

    Attributes:
        device: name of the GPU's backend.
        least_cosine, most_norm: tolerances.
    """

    target: str
    device: str
    differences: tuple[Difference, ...]
    least_cosine: float
    most_norm: float

    def good(self, one: Difference) -> bool:
        """Whether it is within tolerance. NaN is not."""
        return one.cosine >= self.least_cosine and one.norm <= self.most_norm

    @property
    def passed(self) -> bool:
        return all(self.good(one) for one in self.differences)

    def record(self) -> SelfTestRecord:
        """The worst figures, kept beside engine.json."""
        return SelfTestRecord(
            tool=f"fastv-trt {__version__}",
            device=self.device,
            outputs=len(self.differences),
            min_cosine=min(one.cosine for one in self.differences),
            max_norm_ratio_error=max(one.norm for one in self.differences),
            passed=self.passed,
        )


def verify_engine(
    bundle: Bundle,
    device: Device,
    *,
    target: str = "",
    limits: LimitsRecord | None = None,
    ratios: Sequence[float] = RATIOS,
    rankings: Sequence[str] | None = None,
    prompt: str = "Describe the image.",
    images: Sequence[ImageLike] = (),
    threads: int | None = None,
    on_point: Callable[[str, int, int], None] = lambda point, done, total: None,
) -> EngineReport:
    """Compare every graph of a bundle on `device` with ONNX Runtime's CPU, at prefill and decode.

    Args:
        device: from `fastv_trt.runtime.devices.open_device`.
        target: its name, for the report.
        limits: of the engines; points beyond them are left out.
        rankings: by default all that were exported, or random at K = 0.
        images: of the prompt; by default one picture, then two, made from seeded noise.
        on_point: called with each operating point, its index and their number.

    Raises:
        InputError: the bundle's dtype does not run on the CPU, so there is nothing to compare with, or no prompt fits.
    """
    reference = Runtime.load(bundle, threads=threads)
    mirrored = Mirrored(bundle, reference.chain.device, device)
    chain = Chain(bundle, mirrored)
    prompts = [list(images)] if images else [[noise(0)], [noise(1), noise(2)]]
    requests = [request_of(reference.processor, prompt, pictures) for pictures in prompts]
    rankings = bundle.manifest.rankings or ("random",)
    prunings = [
        Pruning(ratio=ratio, ranking=name) for ratio in RATIOS for name in (rankings if ratio else rankings[:1])
    ]
    points = [(r, p) for r in requests for p in prunings if limits is None or _fits(chain, r, p, limits)]
    if not points:
        raise InputError(
            f"expected engines that take a prompt of {min(len(r.input_ids) for r in requests)} tokens, found limits of "
            f"{limits}; give a shorter --prompt and a smaller --image"
        )
    for index, (request, pruning) in enumerate(points):
        on_point(f"R={pruning.ratio:g} {pruning.ranking}", index, len(points))
        _run(chain, request, pruning)
    tight = bundle.manifest.dtype == "fp32"
    return EngineReport(
        target, device.name, mirrored.differences(), 0.9999 if tight else 0.999, 0.01 if tight else 0.02
    )


def _fits(chain: Chain, request: Request, pruning: Pruning, limits: LimitsRecord) -> bool:
    length = len(request.input_ids)
    least, _, most = limits.kept
    return (
        length <= limits.max_prompt
        and length + DECODE_STEPS <= limits.prefix_capacity
        and len(request.image_sizes) <= limits.max_images
        and least <= length - chain.dropped(request, pruning) <= min(most, limits.suffix_capacity - DECODE_STEPS)
    )


def _run(chain: Chain, request: Request, pruning: Pruning) -> None:
    caches = chain.caches([request], [pruning], DECODE_STEPS)
    logits = chain.prefill(caches, 0, request, pruning).logits
    for _ in range(DECODE_STEPS):
        logits = chain.decode(caches, [int(np.argmax(logits))])[0]


class Mirrored:
    """A device that is `reference` in everything, but whose sessions also run, and are compared with, `other`'s."""

    def __init__(self, bundle: Bundle, reference: Device, other: Device) -> None:
        self.bundle, self.reference, self.other = bundle, reference, other
        self._sessions: list[Mirror] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reference, name)

    def session(self, name: str) -> Session:
        self._sessions.append(Mirror(self.bundle, name, self.reference, self.other))
        return self._sessions[-1]

    def differences(self) -> tuple[Difference, ...]:
        return tuple(
            Difference(one.name, kind, output, *worst.figures)
            for one in self._sessions
            for (kind, output), worst in one.worst.items()
        )


@dataclass
class Worst:
    """The largest differences so far."""

    figures: tuple[int, float, float, float] = (0, 1.0, 0.0, 0.0)

    def add(self, wanted: NDArray[Any], found: NDArray[Any]) -> None:
        a, b = (array.astype(np.float64).reshape(-1) for array in (wanted, found))
        norms = float(np.linalg.norm(a)), float(np.linalg.norm(b))
        if norms[0] == 0.0:  # no direction to compare: what is zero must be zero
            cosine, norm = (1.0, 0.0) if norms[1] == 0.0 else (0.0, float("inf"))
        else:
            cosine = float(np.dot(a, b)) / norms[0] / norms[1] if norms[1] > 0.0 else float(norms[1])
            norm = abs(norms[1] / norms[0] - 1.0)
        calls, least, most, largest = self.figures
        difference = float(np.abs(a - b).max(initial=0.0))
        self.figures = (
            calls + 1,
            float(np.minimum(least, cosine)),
            float(np.maximum(most, norm)),
            float(np.maximum(largest, difference)),
        )


@dataclass
class Mirror:
    """One graph on both devices. Behaves as the reference's session."""

    bundle: Bundle
    name: str
    reference: Device
    other: Device
    worst: dict[tuple[str, str], Worst] = field(init=False, default_factory=dict)
    _sessions: tuple[Session, Session] = field(init=False)
    _caches: set[str] = field(init=False)
    # By name and shape: a decode step has to find its tensors where they were, or it is never captured.
    _places: dict[tuple[str, tuple[int, ...]], Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._sessions = (self.reference.session(self.name), self.other.session(self.name))
        self._caches = {record.name for record in self.bundle.manifest.graphs[self.name].inputs if "C" in record.shape}

    def run(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        before = {name: self.reference.download(t) for name, t in tensors.items() if not name.startswith("present.")}
        wanted = self._sessions[0].run(tensors)
        self._compare(before, wanted, placed=all(name in tensors for name in wanted))
        return wanted

    def _compare(self, before: dict[str, NDArray[Any]], wanted: dict[str, Tensor], placed: bool) -> None:
        """Run the other session on what the reference had before its run.

        Args:
            before: every tensor that was given, by name; some are places of outputs.
            wanted: the reference's outputs.
            placed: whether every output had a place, as in decode.
        """
        outputs = {name: tensor for name, tensor in wanted.items() if not name.startswith("present.")}
        given = {name: self._place(name, a) for name, a in before.items() if placed or name not in outputs}
        caches = {name: f"past_key_values.{name.removeprefix('present.')}" for name in wanted if name not in outputs}
        given |= {present: given[past] for present, past in caches.items()}
        found = self._sessions[1].run(given)
        kind = "decode" if placed else "prefill"
        for name, tensor in outputs.items():
            self._worst(kind, name).add(self.reference.download(tensor), self.other.download(found[name]))
        visible = len(before["slots"]) if "slots" in before else 0
        for name in caches:
            a, b = self.reference.download(wanted[name]), self.other.download(found[name])
            self._worst(kind, "caches").add(a[:, :, :visible], b[:, :, :visible])

    def _place(self, name: str, array: NDArray[Any]) -> Tensor:
        """The other device's tensor of that name and shape, with this content; caches get the engine's capacity."""
        if name in self._caches:
            shape = list(array.shape)
            shape[2] = self.other.capacity(self.name, shape[2])
            grown = np.zeros(shape, array.dtype)
            grown[:, :, : array.shape[2]] = array
            array = grown
        key = (name, array.shape)
        if key not in self._places:
            self._places[key] = self.other.zeros(array.shape, str(array.dtype))
        self.other.write(self._places[key], array)
        return self._places[key]

    def _worst(self, kind: str, output: str) -> Worst:
        return self.worst.setdefault((kind, output), Worst())
