"""The KV caches of a batch of requests: N entries in layers before K, n in layers from K on."""

from __future__ import annotations

from dataclasses import dataclass

from fastv_trt.bundle import Manifest
from fastv_trt.errors import InputError
from fastv_trt.runtime.tensor import Device, Tensor

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


@dataclass
class Row:
    """Where one request stands.

    Attributes:
        position: of the next token, in the unpruned sequence.
        prefix_length: filled slots in every layer before K.
        suffix_length: filled slots in every layer from K on.
    """

    position: int = 0
    prefix_length: int = 0
    suffix_length: int = 0


@dataclass
class Step:
    """What one decode step of a batch reads and writes, caches included.

    Made once per batch, so that sessions find everything where they bound it the step before.

    Attributes:
        prefix, suffix: tensors of the two graphs by name. Their `hidden_states`, and their `position_ids`, are one.
        slots: int64 [C], 0, 1, ...; each graph reads as many as it has visible slots.
    """

    prefix: dict[str, Tensor]
    suffix: dict[str, Tensor]
    slots: Tensor


class Caches:
    """Key and value buffers [B, G, C, D] of every layer, and the rows' counters.

    The capacity C is the rows' own need, never the model's context: layers before K and from K on have
    different capacities, which is where FastV's memory saving comes from.
    """

    def __init__(self, manifest: Manifest, device: Device, rows: int, prefix: int, suffix: int) -> None:
        """Allocate for `rows` requests, `prefix` slots in layers before K and `suffix` slots from K on."""
        self._model, self._k, self._dtype = manifest.model, manifest.k, DTYPES[manifest.dtype]
        self._device = device
        prefix, suffix = device.capacity("prefix", prefix), device.capacity("suffix", suffix)
        self.rows = [Row() for _ in range(rows)]
        self.layers = [self._pair(prefix if i < manifest.k else suffix) for i in range(manifest.model.layers)]
        self.prefix_capacity, self.suffix_capacity = prefix, suffix
        self.step: Step | None = None

    def _pair(self, capacity: int) -> tuple[Tensor, Tensor]:
        shape = (len(self.rows), self._model.key_value_heads, capacity, self._model.head_size)
        return self._device.zeros(shape, self._dtype), self._device.zeros(shape, self._dtype)

    @property
    def bytes(self) -> int:
        """Bytes allocated for keys and values."""
        return sum(tensor.bytes for pair in self.layers for tensor in pair)

    def prefix(self, row: int | None = None) -> dict[str, Tensor]:
        """Bindings of the layers before K: each past and its present on the same memory."""
        return self._bindings(range(self._k), row)

    def suffix(self, row: int | None = None) -> dict[str, Tensor]:
        """Bindings of the layers from K on."""
        return self._bindings(range(self._k, len(self.layers)), row)

    def key(self, layer: int, row: int) -> Tensor:
        """The key cache of one layer and row: [1, G, C, D]."""
        return self.layers[layer][0].row(row)

    def _bindings(self, layers: range, row: int | None) -> dict[str, Tensor]:
        bound: dict[str, Tensor] = {}
        for i in layers:
            for part, tensor in zip(("key", "value"), self.layers[i], strict=True):
                place = tensor if row is None else tensor.row(row)
                bound[f"past_key_values.{i}.{part}"] = bound[f"present.{i}.{part}"] = place
        return bound

    def rewind(self, row: int) -> None:
        """Forget what a row holds. What comes next overwrites it; until then no query can see it."""
        self.rows[row] = Row()

    def require(self, prefix: int, suffix: int) -> None:
        """Check, before a run, that every write will land inside: an out-of-range write is silent.

        Raises:
            InputError: a capacity is too small.
        """
        if prefix > self.prefix_capacity or suffix > self.suffix_capacity:
            raise InputError(
                f"expected cache capacity for {prefix} and {suffix} slots, found {self.prefix_capacity} and "
                f"{self.suffix_capacity}; reserve more"
            )

    def reserve(self, prefix: int, suffix: int) -> None:
        """Grow, keeping what is written, so that a later turn fits."""
        grown = (
            self._device.capacity("prefix", max(prefix, self.prefix_capacity)),
            self._device.capacity("suffix", max(suffix, self.suffix_capacity)),
        )
        for i, old in enumerate(self.layers):
            side = 0 if i < self._k else 1
            capacity = grown[side]
            if capacity == old[0].shape[2]:
                continue
            used = max((r.prefix_length if side == 0 else r.suffix_length) for r in self.rows)
            new = self._pair(capacity)
            for source, target in zip(old, new, strict=True):
                self._device.copy_slots(source, target, used)
            self.layers[i] = new
            self.step = None  # it is bound to the old memory
        self.prefix_capacity, self.suffix_capacity = grown
