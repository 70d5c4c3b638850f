"""What the graphs really get to see: their inputs, recorded while the chain answers the samples.

The prefix sees every token, the suffix only the kept ones, and both see prefill and decode. Activation ranges that
were collected on anything else would be those of another model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastv_trt.bundle import Bundle
from fastv_trt.calibration.samples import Sample
from fastv_trt.pruning import Pruning
from fastv_trt.runtime import Limits, Request, Runtime
from fastv_trt.runtime.chain import Chain
from fastv_trt.runtime.ort import OrtCpu
from fastv_trt.runtime.tensor import Session, Tensor

Feed = dict[str, NDArray[Any]]


@dataclass
class Watched(OrtCpu):
    """The CPU, with one graph's inputs recorded."""

    graph: str = ""
    seen: list[Feed] = field(default_factory=list)

    def session(self, name: str) -> Session:
        session = super().session(name)
        return _Watch(self, session) if name == self.graph else session


@dataclass
class _Watch:
    device: Watched
    session: Session

    def run(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        names = [record.name for record in self.device.bundle.manifest.graphs[self.device.graph].inputs]
        self.device.seen.append({name: self.device.download(tensors[name]) for name in names})
        return self.session.run(tensors)


def feeds(
    bundle: Bundle,
    graph: str,
    samples: Sequence[Sample],
    policy: Pruning,
    steps: int,
    *,
    threads: int | None = None,
    on_sample: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Feed]:
    """Inputs of one graph, prefill and `steps` greedy decode steps of every sample, made as they are asked for.

    Args:
        policy: what is dropped between prefix and suffix.
    """
    device = Watched(bundle, threads, graph=graph)
    runtime = Runtime(bundle, Chain(bundle, device))
    for index, sample in enumerate(samples):
        on_sample(index, len(samples))
        request: Request = runtime.request(sample.prompt, list(sample.images))
        runtime.answers([request], policy, Limits(1 + steps, stop=()))
        yield from device.seen
        device.seen.clear()


class Reader:
    """Feeds as onnxruntime.quantization wants to read them."""

    def __init__(self, source: Iterator[Feed]) -> None:
        self._source = source

    def get_next(self) -> Feed | None:
        return next(self._source, None)


def rms(values: NDArray[Any]) -> float:
    """Root mean square, in fp64."""
    return float(np.sqrt(np.mean(np.square(values.astype(np.float64)))))
