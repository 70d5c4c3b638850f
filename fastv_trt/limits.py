"""How large a request may be, and the optimization profiles that follow from it.

A limit is chosen once per build; the share of tokens to drop stays free per request, because the kept length
of the suffix is a range, by default from text alone to the whole prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fastv_trt.bundle import ModelRecord
from fastv_trt.errors import InputError
from fastv_trt.targets import LimitsRecord, ProfileRecord, RangeRecord

CAPACITY_STEP = 64
"""Capacities are multiples of it, so that every row of a cache starts at an address that TensorRT accepts."""

_DEFAULT_PROMPT, _DEFAULT_NEW = 4096, 256

Axes = tuple[int | str, ...]


@dataclass(frozen=True)
class Range:
    """Smallest, optimal and largest size of one dimension."""

    min: int
    opt: int
    max: int

    @classmethod
    def parse(cls, text: str, what: str) -> Range:
        """Read "min:opt:max".

        Raises:
            InputError: not three whole numbers.
        """
        parts = text.split(":")
        if len(parts) != 3 or not all(part.strip().isdigit() for part in parts):
            raise InputError(f"expected {what} as min:opt:max, found {text!r}; for example 64:512:4096")
        return cls(*(int(part) for part in parts))

    @property
    def ordered(self) -> bool:
        return 0 <= self.min <= self.opt <= self.max

    def __str__(self) -> str:
        return f"{self.min}:{self.opt}:{self.max}"


@dataclass(frozen=True)
class BuildLimits:
    """What the engines of one target accept.

    Attributes:
        max_prompt: N, tokens of one prompt or one later turn, image tokens included.
        max_images: images of one request.
        max_batch: rows that are decoded together.
        kept: n, tokens of a prompt that live on after layer K.
        capacity: C, cache slots per row in layers before K: everything a conversation says.
    """

    max_prompt: int
    max_images: int
    max_batch: int
    kept: Range
    capacity: int

    @classmethod
    def of(
        cls,
        model: ModelRecord,
        *,
        max_prompt: int | None = None,
        max_images: int = 4,
        max_batch: int = 8,
        kept: Range | None = None,
        capacity: int | None = None,
    ) -> BuildLimits:
        """Limits with the defaults that follow from the model, checked.

        `max_prompt` defaults to 4096, or what the context leaves after 256 new tokens (a quarter of a short
        one); `capacity` to the prompt and those new tokens, rounded up to a multiple of 64; `kept` to 1..N.

        Raises:
            InputError: one message with every problem.
        """
        new = min(_DEFAULT_NEW, model.max_positions // 4)
        prompt = max(1, min(_DEFAULT_PROMPT, model.max_positions - new)) if max_prompt is None else max_prompt
        limits = cls(
            max_prompt=prompt,
            max_images=max_images,
            max_batch=max_batch,
            kept=kept or Range(1, max(1, prompt // 2), max(1, prompt)),
            capacity=min(_round_up(prompt + new), largest_capacity(model)) if capacity is None else capacity,
        )
        limits.check(model)
        return limits

    @property
    def suffix_capacity(self) -> int:
        """Cache slots per row in layers from K on: what is kept, and as many new tokens as before K."""
        return min(self.capacity, _round_up(self.kept.max + self.capacity - self.max_prompt))

    def check(self, model: ModelRecord) -> None:
        """Raise InputError that lists every problem with these limits for `model`."""
        found = self.problems(model)
        if found:
            raise InputError("expected limits that fit the model and each other, found: " + "; ".join(found))

    def problems(self, model: ModelRecord) -> list[str]:
        """Everything that is wrong with these limits for `model`, each with what to do."""
        found = []
        context, largest = model.max_positions, largest_capacity(model)
        if not 1 <= self.max_prompt <= context:
            found.append(f"max-prompt {self.max_prompt} is not in 1..{context}, the model's context")
        if self.max_images < 1:
            found.append(f"max-images {self.max_images} is below 1")
        if self.max_batch < 1:
            found.append(f"max-batch {self.max_batch} is below 1")
        if not self.kept.ordered:
            found.append(f"kept {self.kept} is not ordered as min <= opt <= max")
        if self.kept.min < 1:
            found.append(f"kept {self.kept} begins below 1; the last token of a prompt always lives on")
        if self.kept.max > self.max_prompt:
            found.append(f"kept {self.kept} ends above max-prompt {self.max_prompt}")
        if self.capacity <= self.max_prompt:
            found.append(
                f"capacity {self.capacity} leaves no slot for new tokens after a prompt of {self.max_prompt}; "
                f"give {_round_up(self.max_prompt + 1)} or more, or a smaller max-prompt"
            )
        if self.capacity % CAPACITY_STEP:
            found.append(f"capacity {self.capacity} is not a multiple of {CAPACITY_STEP}")
        if self.capacity > largest:
            found.append(f"capacity {self.capacity} is above {largest}, beyond the model's context of {context}")
        return found

    def record(self) -> LimitsRecord:
        return LimitsRecord(
            max_prompt=self.max_prompt,
            max_images=self.max_images,
            max_batch=self.max_batch,
            kept=(self.kept.min, self.kept.opt, self.kept.max),
            prefix_capacity=self.capacity,
            suffix_capacity=self.suffix_capacity,
        )

    def capacity_of(self, graph: str) -> int:
        """The static C of a graph's caches. Rank graphs read a cache of the prefix."""
        return self.suffix_capacity if graph == "suffix" else self.capacity


def largest_capacity(model: ModelRecord) -> int:
    """More slots than the context, by at most one step, can never be filled."""
    return _round_up(model.max_positions + 1)


@dataclass(frozen=True)
class Profile:
    """One optimization profile: a range for every named axis of the graph contract."""

    name: str
    axes: dict[str, Range]

    def shapes(self, inputs: dict[str, Axes]) -> ProfileRecord:
        """Smallest, optimal and largest shape of every input. Call `problems` first.

        Axes of one name get one range, so that equal names are equal sizes in every profile.
        """

        def shape(axes: Axes, end: str) -> tuple[int, ...]:
            return tuple(axis if isinstance(axis, int) else int(getattr(self.axes[axis], end)) for axis in axes)

        ranges = {
            name: RangeRecord(min=shape(axes, "min"), opt=shape(axes, "opt"), max=shape(axes, "max"))
            for name, axes in inputs.items()
        }
        return ProfileRecord(name=self.name, shapes=ranges)

    def problems(self, graph: str, inputs: dict[str, Axes]) -> list[str]:
        """Why this profile does not fit the graph's inputs, before TensorRT is asked.

        Args:
            graph: its name, for the message.
            inputs: axes of every input, caches with their static capacity.
        """
        found = []
        for name, axes in inputs.items():
            for axis in axes:
                if isinstance(axis, int):
                    if axis < 0:
                        found.append(f"{graph}: {name} has an axis without a name; export it again")
                elif axis == "C":
                    found.append(f"{graph}: the capacity of {name} is not static")
                elif axis not in self.axes:
                    known = ", ".join(self.axes)
                    found.append(f"{graph}: {name} has an axis {axis!r} that profile {self.name} lacks ({known})")
                elif not self.axes[axis].ordered:
                    found.append(f"{graph}: axis {axis!r} of {name} has the range {self.axes[axis]}")
        return found


_ONE_TILE: Mapping[str, int] = MappingProxyType({"I": 1})


def profiles(graph: str, limits: BuildLimits, picture: Mapping[str, int] = _ONE_TILE) -> tuple[Profile, ...]:
    """The profiles of a graph: prefill and decode for the two big ones, one for the others.

    `picture` is the largest size of each axis of the vision graph for one picture (`VisionRecord.axes`).

    Prefill is one request at a time, decode one token at a time, batched; both ranges still go up to 2. With
    S = 1 alone every weight was stored twice, with B = 1 alone the output head (tests/engines/test_size.py).
    """
    prompt, capacity = limits.max_prompt, limits.capacity_of(graph)
    half = max(1, prompt // 2)
    # A size that is exactly 1 gets weights in a layout of its own, and the plan then stores them twice.
    step = Range(1, 1, 2)
    if graph == "vision":
        sizes = {axis: Range(1, most, most * limits.max_images) for axis, most in picture.items()}
        return (Profile("prefill", {"M": Range(1, half, prompt), "Q": Range(1, min(16, prompt), prompt)} | sizes),)
    prefill = {
        "B": step,
        "S": Range(1, half, prompt),
        "T": Range(1, min(half, capacity), capacity),
        "n": limits.kept,
        "M": Range(0, half, prompt),
    }
    if graph not in ("prefix", "suffix"):
        return (Profile("prefill", prefill),)
    rows = Range(1, min(limits.max_batch, max(1, limits.max_batch // 2)), limits.max_batch)
    decode = {
        "B": rows,
        "S": step,
        "n": step,
        "T": Range(1, min(half, capacity), capacity),
        "M": Range(0, 0, 1),
    }
    return Profile("prefill", prefill), Profile("decode", decode)


def _round_up(slots: int) -> int:
    return -(-slots // CAPACITY_STEP) * CAPACITY_STEP
