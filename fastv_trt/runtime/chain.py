"""The core: token ids and pixel values in, token ids out. Prefill, pruning and decode over one device.

    vision -> prefix -> rank -> select -> suffix -> token -> prefix -> ...

Needs NumPy and a device; neither transformers nor torch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastv_trt.bundle import Bundle, Manifest
from fastv_trt.errors import InputError
from fastv_trt.pruning import FREE_RANKINGS, Pruning, Scope, diversity_scores, image_positions, random_scores, select
from fastv_trt.runtime.caches import DTYPES, Caches, Step
from fastv_trt.runtime.tensor import Device, Session, Tensor


@dataclass(frozen=True)
class Request:
    """One prompt, or one later turn of a conversation.

    Attributes:
        input_ids: int64 [N], image tokens expanded.
        vision_inputs: inputs of the vision graph by name (for LLaVA pixel_values [I,3,H,W]); empty without images.
        image_sizes: number of image tokens of each image, in order.
        scores: external scores [M], one per image token, for ranking "external".
        preprocess_seconds: what making this request took; copied into the timings.
        position_ids: with M-RoPE and images, int64 [3,N] of time, row and column, counted from this prompt's start;
            None counts 0, 1, 2, ...
        frame_sizes: number of image tokens of each frame, where an image may be a clip; empty: each image is one.
    """

    input_ids: NDArray[np.int64]
    vision_inputs: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    image_sizes: tuple[int, ...] = ()
    scores: NDArray[np.float32] | None = None
    preprocess_seconds: float = 0.0
    position_ids: NDArray[np.int64] | None = None
    frame_sizes: tuple[int, ...] = ()

    def after(self, tokens: Sequence[int]) -> Request:
        """This request with text tokens before it: the last token of an answer, which the model has not read."""
        ids = np.concatenate((np.asarray(tokens, dtype=np.int64), self.input_ids))
        places = self.position_ids
        if places is not None:
            before = np.broadcast_to(np.arange(len(tokens)), (*places.shape[:-1], len(tokens)))
            places = np.concatenate((before, places + len(tokens)), axis=-1)
        return replace(self, input_ids=ids, position_ids=places)

    def groups(self, scope: Scope) -> tuple[int, ...]:
        """Sizes of the groups of image tokens that get a share of their own under a policy's scope."""
        return self.frame_sizes or self.image_sizes if scope == "frame" else self.image_sizes


@dataclass(frozen=True)
class Prefill:
    """What one prefill did.

    Attributes:
        logits: of the last token, float32 [V].
        image_tokens: M of this turn.
        kept_tokens: image tokens that lived on.
        prompt_tokens: N of this turn, before pruning.
        keep_indices: kept positions within this turn, ascending, int64 [n].
        image_positions: positions of the image tokens within this turn, int64 [M].
        scores: float32 [M], or None where the ranking has none (uniform) or nothing was ranked.
        timings: seconds by part: preprocess, vision, prefix, rank+select, suffix.
        notes: what the user should know (nothing was pruned, the last token is an image token).
    """

    logits: NDArray[np.float32]
    image_tokens: int
    kept_tokens: int
    prompt_tokens: int
    keep_indices: NDArray[np.int64]
    image_positions: NDArray[np.int64]
    scores: NDArray[np.float32] | None
    timings: dict[str, float]
    notes: tuple[str, ...]

    @property
    def ttft(self) -> float:
        """Seconds to first token: all parts of the prefill together."""
        return sum(self.timings.values())


@dataclass(frozen=True)
class Read:
    """What vision and prefix gave for one prompt: all that a ranking may look at.

    Attributes:
        hidden: activations before layer K, [1,S,d].
        query: queries of layer K-1, [1,H,S,D]; None at K = 0.
        features: the vision graph's outputs.
        timings: seconds by part: preprocess, vision, prefix.
    """

    hidden: Tensor
    query: Tensor | None
    features: dict[str, Tensor]
    timings: dict[str, float]


class Chain:
    """The sessions of a bundle, chained. Stateless: what a request leaves behind is in its `Caches`."""

    def __init__(self, bundle: Bundle, device: Device) -> None:
        self.bundle, self.manifest, self.device = bundle, bundle.manifest, device
        self._slow = slow_form(bundle.manifest, device.name)
        self._sessions: dict[str, Session] = {name: device.session(name) for name in bundle.manifest.graphs}
        self._mrope = bundle.manifest.vision.positions == "mrope"
        self._suffix_inputs = {record.name for record in bundle.manifest.graphs["suffix"].inputs}

    def caches(self, requests: Sequence[Request], prunings: Sequence[Pruning], new_tokens: int) -> Caches:
        """Caches for a batch of requests, sized to prompt + new tokens, pruned layers to what is kept.

        Raises:
            InputError: a prompt and its new tokens are longer than the model's context.
        """
        lengths = [len(request.input_ids) for request in requests]
        for length in lengths:
            self.check_length(length, new_tokens)
        kept = [n - self.dropped(r, p) for n, r, p in zip(lengths, requests, prunings, strict=True)]
        return Caches(self.manifest, self.device, len(requests), max(lengths) + new_tokens, max(kept) + new_tokens)

    def check_length(self, length: int, new_tokens: int) -> None:
        """Raise InputError if `length` + `new_tokens` exceeds the context."""
        limit = self.manifest.model.max_positions
        if length + new_tokens > limit:
            raise InputError(
                f"expected prompt and new tokens within the context of {limit}, found {length} + {new_tokens}; "
                "shorten the prompt or ask for fewer tokens"
            )

    def dropped(self, request: Request, pruning: Pruning) -> int:
        """How many tokens of a request will not live on after layer K; with a mass: at least."""
        return sum(request.image_sizes) - pruning.kept_tokens(request.groups(pruning.scope))

    def prefill(self, caches: Caches, row: int, request: Request, pruning: Pruning) -> Prefill:
        """Run one prompt, or a later turn, of one row through the chain.

        Raises:
            InputError: images and placeholders do not match, the ranking is not in the bundle, pruning was
                required and is impossible, or the caches are too small.
        """
        self._check(request, pruning, self._image(request))
        state, length = caches.rows[row], len(request.input_ids)
        caches.require(state.prefix_length + length, state.suffix_length + length - self.dropped(request, pruning))
        return self.prune(caches, row, request, pruning, self.read(caches, row, request))

    def read(self, caches: Caches, row: int, request: Request) -> Read:
        """The part of a prefill that no policy changes: vision and the prefix, over every token of one row.

        The row does not advance: `prune` does that, and may be called for several policies, each after `caches.rewind`.
        """
        positions = self._image(request)
        clock = Clock({"preprocess": request.preprocess_seconds})
        with clock("vision"):
            features = self.features(request, len(positions))
        with clock("prefix"):
            hidden, query = self.prefix(caches, row, request, features)
        return Read(hidden, query, features, clock.seconds)

    def prune(self, caches: Caches, row: int, request: Request, pruning: Pruning, read: Read) -> Prefill:
        """The rest of a prefill: rank, select, and the suffix over what is kept.

        Raises:
            InputError: as `prefill` does.
        """
        state, length = caches.rows[row], len(request.input_ids)
        positions = self._image(request)
        notes = self._check(request, pruning, positions)
        clock = Clock(dict(read.timings))
        with clock("rank+select"):
            scores, keep = None, np.arange(length, dtype=np.int64)
            if pruning.asked and len(positions):
                scores = self.scores(caches, row, request, pruning, read)
                keep = select(pruning, length, positions, request.groups(pruning.scope), scores)
        caches.require(state.prefix_length + length, state.suffix_length + len(keep))
        places = self.positions(request)
        with clock("suffix"):
            logits = self._suffix(caches, row, read.hidden, keep, places, positions, read.features)
        state.position += int(places.max()) + 1
        state.prefix_length += length
        state.suffix_length += len(keep)
        return Prefill(
            logits=logits,
            image_tokens=len(positions),
            kept_tokens=len(keep) - (length - len(positions)),
            prompt_tokens=length,
            keep_indices=keep,
            image_positions=positions,
            scores=scores,
            timings=clock.seconds,
            notes=notes,
        )

    def decode(self, caches: Caches, tokens: Sequence[int], live: Sequence[bool] | None = None) -> NDArray[np.float32]:
        """One decode step of every row.

        Args:
            tokens: the rows' newest tokens.
            live: rows that go on. A row that has ended is computed with the others but does not advance: its
                next step overwrites the same slot, so its caches stay as they were when it ended.

        Returns:
            logits, float32 [B, V].
        """
        rows = caches.rows
        prefix, suffix = [r.prefix_length for r in rows], [r.suffix_length for r in rows]
        caches.require(max(prefix) + 1, max(suffix) + 1)
        step = caches.step = caches.step or self._step(caches)
        write = self.device.write
        write(step.prefix["input_ids"], np.array(tokens, dtype=np.int64)[:, None])
        places = np.array([r.position for r in rows], dtype=np.int64)[:, None]
        write(step.suffix["position_ids"], np.stack([places] * 3) if self._mrope else places)
        if self.manifest.k > 0:
            write(step.prefix["write_index"], np.array(prefix, dtype=np.int64))
            step.prefix["slots"] = replace(step.slots, shape=(max(prefix) + 1,))
        self._sessions["prefix"].run(step.prefix)
        write(step.suffix["write_index"], np.array(suffix, dtype=np.int64))
        step.suffix["slots"] = replace(step.slots, shape=(max(suffix) + 1,))
        self._sessions["suffix"].run(step.suffix)
        for state, alive in zip(rows, live or [True] * len(rows), strict=True):
            if alive:
                state.position += 1
                state.prefix_length += 1
                state.suffix_length += 1
        return self.device.download(step.suffix["logits"])[:, 0]

    def _step(self, caches: Caches) -> Step:
        """Scratch of a batch's decode steps: every input and output of both graphs has its place from here on."""
        model, rows, zeros = self.manifest.model, len(caches.rows), self.device.zeros
        dtype = DTYPES[self.manifest.dtype]
        ids = zeros((rows, 1), "int64")
        position_ids = zeros((3, rows, 1) if self._mrope else (rows, 1), "int64")
        hidden = zeros((rows, 1, model.hidden_size), dtype)
        nothing = self._no_features()
        prefix = {"input_ids": ids, **nothing, "hidden_states": hidden}
        if self.manifest.k > 0:
            prefix |= {"position_ids": position_ids, "write_index": zeros((rows,), "int64")} | caches.prefix()
            prefix["query_states"] = zeros((rows, model.heads, 1, model.head_size), dtype)
        suffix = {
            "hidden_states": hidden,
            "keep_indices": zeros((rows, 1), "int64"),
            "position_ids": position_ids,
            "write_index": zeros((rows,), "int64"),
            "logits": zeros((rows, 1, model.vocab_size), "float32"),
        }
        if "deepstack_rows" in self._suffix_inputs:
            none = self.device.upload(np.full((rows, 1), -1, dtype=np.int64))
            suffix |= {"deepstack_features": nothing["deepstack_features"], "deepstack_rows": none}
        slots = self.device.upload(np.arange(max(caches.prefix_capacity, caches.suffix_capacity), dtype=np.int64))
        return Step(prefix, suffix | caches.suffix(), slots)

    def _image(self, request: Request) -> NDArray[np.int64]:
        return image_positions(request.input_ids, self.manifest.tokens.image)

    def _check(self, request: Request, pruning: Pruning, positions: NDArray[np.int64]) -> tuple[str, ...]:
        if len(request.input_ids) == 0:
            raise InputError("expected a prompt of 1 or more tokens, found an empty one")
        vocabulary = self.manifest.model.vocab_size
        text = np.delete(request.input_ids, positions)
        if len(text) and not (text.min() >= 0 and text.max() < vocabulary):
            raise InputError(f"expected token ids in 0..{vocabulary - 1}, found {text.min()} to {text.max()}")
        sizes = request.groups(pruning.scope)
        if sum(request.image_sizes) != len(positions) or sum(sizes) != len(positions):
            raise InputError(
                f"expected as many image placeholders as image tokens, found {len(positions)} placeholders for "
                f"{len(sizes)} images of {list(sizes)} tokens"
            )
        if pruning.ranking not in FREE_RANKINGS and pruning.asked:
            self.check_ranking(pruning.ranking)
        notes = [] if self._slow is None else [self._slow]
        if pruning.asked and not len(positions):
            if pruning.required:
                raise InputError("expected image tokens to prune, found a text-only prompt (pruning is required)")
            notes.append("nothing was pruned: the prompt has no image tokens")
        if len(positions) and positions[-1] == len(request.input_ids) - 1:
            notes.append("the last prompt token is an image token, so the ranking's query is one: put text after it")
        return tuple(notes)

    def check_ranking(self, ranking: str) -> None:
        """Raise InputError if an attention ranking is not in the bundle."""
        if ranking in self.manifest.rankings:
            return
        if self.manifest.k == 0:
            raise InputError(
                f"expected a ranking that needs no attention ({', '.join(FREE_RANKINGS)}) in a bundle cut at K=0, "
                f"found {ranking!r}"
            )
        offered = ", ".join((*self.manifest.rankings, *FREE_RANKINGS))
        raise InputError(f"expected a ranking that was exported ({offered}), found {ranking!r}; export with --rankings")

    def positions(self, request: Request) -> NDArray[np.int64]:
        """Position ids of a request, counted from its start: [N], or [3,N] with M-RoPE.

        Raises:
            InputError: they are missing, or not of that shape.
        """
        length, given = len(request.input_ids), request.position_ids
        shape = (3, length) if self._mrope else (length,)
        if given is None and self._mrope and request.image_sizes:
            raise InputError("expected position_ids [3, N] with the images of an M-RoPE model, found none")
        if given is None:
            return np.broadcast_to(np.arange(length, dtype=np.int64), shape)
        if given.shape != shape:
            raise InputError(f"expected position_ids of shape {list(shape)}, found {list(given.shape)}")
        return given

    def _no_features(self) -> dict[str, Tensor]:
        dtype, size = DTYPES[self.manifest.dtype], self.manifest.model.hidden_size
        nothing = {"image_features": self.device.zeros((0, size), dtype)}
        if count := self.manifest.vision.deepstack:
            nothing["deepstack_features"] = self.device.zeros((count, 0, size), dtype)
        return nothing

    def features(self, request: Request, tokens: int) -> dict[str, Tensor]:
        """The vision graph's outputs for a request with `tokens` placeholders: image_features [M,d] and the like."""
        if not request.vision_inputs:
            return self._no_features()
        graph = self.manifest.graphs["vision"]
        inputs = {}
        for record in graph.inputs:
            if record.name not in request.vision_inputs:
                raise InputError(f"expected {record.name} for the vision graph, found {list(request.vision_inputs)}")
            tensor = self.device.take(request.vision_inputs[record.name], record.dtype)
            expected = [d for d in record.shape if isinstance(d, int)]
            if (
                len(tensor.shape) != len(record.shape)
                or [s for s, d in zip(tensor.shape, record.shape, strict=True) if isinstance(d, int)] != expected
            ):
                raise InputError(f"expected {record.name} of shape {list(record.shape)}, found {list(tensor.shape)}")
            inputs[record.name] = tensor
        features = self._sessions["vision"].run(inputs)
        found = features["image_features"].shape[0]
        if found != tokens:
            raise InputError(f"expected one image feature per placeholder, found {found} features for {tokens}")
        return features

    def prefix(
        self, caches: Caches, row: int, request: Request, features: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """The prefix graph over one row's prompt: hidden_states [1,S,d], query_states [1,H,S,D] (None at K = 0)."""
        state = caches.rows[row]
        ids = np.asarray(request.input_ids, dtype=np.int64)
        tensors = {"input_ids": self.device.upload(ids[None]), **features}
        if self.manifest.k > 0:
            places = state.position + self.positions(request)
            tensors |= self._steps(places, state.prefix_length) | caches.prefix(row)
        outputs = self._sessions["prefix"].run(tensors)
        return outputs["hidden_states"], outputs.get("query_states")

    def _suffix(
        self,
        caches: Caches,
        row: int,
        hidden: Tensor,
        keep: NDArray[np.int64],
        places: NDArray[np.int64],
        image: NDArray[np.int64],
        features: dict[str, Tensor],
    ) -> NDArray[np.float32]:
        """The suffix graph over one row's kept tokens, at their own `places`: logits [V]."""
        state = caches.rows[row]
        tensors = {"hidden_states": hidden, "keep_indices": self.device.upload(keep[None])}
        tensors |= self._steps(state.position + places[..., keep], state.suffix_length) | caches.suffix(row)
        if "deepstack_rows" in self._suffix_inputs:
            rows = np.full(places.shape[-1], -1, dtype=np.int64)
            rows[image] = np.arange(len(image))
            tensors["deepstack_features"] = features["deepstack_features"]
            tensors["deepstack_rows"] = self.device.upload(rows[keep][None])
        logits: NDArray[np.float32] = self.device.download(self._sessions["suffix"].run(tensors)["logits"])[0, 0]
        return logits

    def _steps(self, positions: NDArray[np.int64], write: int) -> dict[str, Tensor]:
        """Inputs that say where one row's tokens stand: their positions [S] or [3,S], their slots from `write` on."""
        length = positions.shape[-1]
        return {
            "position_ids": self.device.upload(np.ascontiguousarray(positions[..., None, :], dtype=np.int64)),
            "slots": self.device.upload(np.arange(write + length, dtype=np.int64)),
            "write_index": self.device.upload(np.array([write], dtype=np.int64)),
        }

    def scores(
        self, caches: Caches, row: int, request: Request, pruning: Pruning, read: Read
    ) -> NDArray[np.float32] | None:
        """Scores of the image tokens, [M]: from a rank graph, from the host, from the caller, or none (uniform)."""
        positions = self._image(request)
        if pruning.ranking == "external":
            if request.scores is None or request.scores.shape != (len(positions),):
                found = "none" if request.scores is None else str(list(request.scores.shape))
                raise InputError(f"expected external scores of shape [{len(positions)}], found {found}")
            return request.scores
        if pruning.ranking == "random":
            return random_scores(len(positions), pruning.seed)
        if pruning.ranking == "uniform":
            return None
        if pruning.ranking == "diversity":
            if read.hidden.dtype == "bfloat16":
                raise InputError("expected an fp32 or fp16 bundle for ranking 'diversity', found bf16; export again")
            return diversity_scores(self.device.download(read.hidden)[0, positions])
        return self._graph_scores(caches, row, request, pruning.ranking, read, positions)

    def _graph_scores(
        self, caches: Caches, row: int, request: Request, ranking: str, read: Read, positions: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Scores from a rank graph, which gets the inputs that it names."""
        name, written = f"rank-{ranking}", caches.rows[row].prefix_length
        length = len(request.input_ids)
        wanted = {record.name for record in self.manifest.graphs[name].inputs}
        tensors = {"hidden_states": read.hidden, "key": caches.key(self.manifest.k - 1, row)}
        if read.query is not None:
            tensors["query_states"] = read.query
        tensors |= self._steps(np.arange(length), written)
        if "candidates" in wanted:
            candidates = np.zeros((1, written + length), dtype=np.int64)
            candidates[0, written + positions] = 1
            tensors["candidates"] = self.device.upload(candidates)
        chosen = {key: tensor for key, tensor in tensors.items() if key in wanted}
        scores = self.device.download(self._sessions[name].run(chosen)["scores"])[0]
        result: NDArray[np.float32] = scores[written + positions]
        return result


def slow_form(manifest: Manifest, device: str) -> str | None:
    """What to say where a quantized bundle runs on what it was not made for: right, but slow; None elsewhere."""
    made = manifest.quantization
    if made is None or made.target in ("any", "cpu" if device == "cpu" else "tensorrt"):
        return None
    return (
        f"slow: this bundle is {made.scheme} for {made.target}, which {device} runs several times slower than floating "
        f"point; for {device} make another with fastv-trt quantize"
    )


@dataclass
class Clock:
    """Seconds by part; each part is measured once it has finished on the device."""

    seconds: dict[str, float]

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[part] = time.perf_counter() - started
