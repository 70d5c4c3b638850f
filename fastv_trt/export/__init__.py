"""Checkpoint -> bundle: trace the model's parts into ONNX graphs. Needs torch and transformers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from fastv_trt import __version__, bundle
from fastv_trt.errors import InputError
from fastv_trt.pruning import ATTENTION_RANKINGS, FREE_RANKINGS

if TYPE_CHECKING:
    from fastv_trt.export.decoder import Decoder
    from fastv_trt.export.graphs import Traceable
    from fastv_trt.families import Family
    from fastv_trt.families.preprocessing import Preprocessing

__all__ = ["Exported", "export"]


@dataclass(frozen=True)
class Exported:
    """A new bundle, and what its maker should know (weights that were cast, for one)."""

    bundle: bundle.Bundle
    notes: tuple[str, ...]


def export(
    checkpoint: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    k: int = 2,
    dtype: str = "fp32",
    rankings: Sequence[str] | None = None,
    allow_pickle: bool = False,
    on_step: Callable[[str, int, int], None] = lambda step, done, total: None,
) -> Exported:
    """Cut the checkpoint's decoder at layer `k` and write a bundle.

    Args:
        checkpoint: a `save_pretrained` folder with safetensors weights and processor files.
        output: folder to make; it must not exist.
        k: layers 0..k-1 see every token, layers k..L-1 only the kept ones.
        dtype: "fp32", "fp16" or "bf16", of weights, activations and caches.
        rankings: attention rankings to export; by default all that the decoder can have, or none at k = 0.
        allow_pickle: read weights from `.bin` files if there are no safetensors; torch then unpickles tensors and
            nothing else.
        on_step: called with the name of each step, its index and the number of steps.

    Raises:
        InputError: the checkpoint, K, dtype or ranking is not usable, or `output` exists.
        UnsupportedModelError: the model cannot be exported correctly.
    """
    bundle.refuse_existing(Path(output))
    names = _rankings(rankings, k)

    from fastv_trt.export import checkpoint as source
    from fastv_trt.export import graphs, ranks, writer
    from fastv_trt.export.decoder import Decoder
    from fastv_trt.families.preprocessing import Preprocessing

    if dtype not in source.DTYPES:
        raise InputError(f"expected dtype {', '.join(source.DTYPES)}, found {dtype!r}")
    found = source.inspect_checkpoint(checkpoint, k, allow_pickle)
    family, config = found.family, found.config
    names = _possible(names, config.get_text_config(), chosen=rankings is not None)
    if family.preprocessing is None:
        processor = Preprocessing.load(Path(checkpoint), family.prompt_tokenizer)
    else:
        processor = family.preprocessing(Path(checkpoint), config)
    vision = _vision_record(family, config, processor)
    notes = source.notes(found, dtype)
    steps = ["load", "vision", "prefix", "suffix", *(f"rank-{name}" for name in names), "hash"]
    image_tokens = _image_tokens(family, config)
    mrope = family.positions == "mrope"

    def traceable(model: Any, decoder: Decoder, step: str) -> Traceable:
        if step == "vision":
            return graphs.vision(family, config, model)
        if step == "prefix":
            return graphs.prefix(decoder, k, image_tokens, mrope, vision.deepstack)
        if step == "suffix":
            return graphs.suffix(decoder, k, mrope, vision.deepstack)
        return ranks.rank(decoder, step.removeprefix("rank-"))

    with bundle.writing(output) as folder, _scratch(folder) as scratch:
        on_step("load", 0, len(steps))
        model: Any
        model, said = source.load(found, source.DTYPES[dtype], scratch)
        decoder = Decoder.of(model)
        (folder / "onnx").mkdir()
        records: dict[str, bundle.GraphRecord] = {}
        for index, step in enumerate(steps[1:-1], start=1):
            on_step(step, index, len(steps))
            graph = traceable(model, decoder, step)
            writer.write(graph, folder / "onnx" / f"{step}.onnx")
            records[step] = bundle.GraphRecord(
                path=f"onnx/{step}.onnx",
                inputs=tuple(argument.record() for argument in graph.arguments),
                outputs=graph.results,
            )
        on_step("hash", len(steps) - 1, len(steps))
        processor.save(folder / "processor", family.prompt_tokenizer)
        manifest = bundle.Manifest(
            schema_version=bundle.SCHEMA_VERSION,
            created_by=f"fastv-trt {__version__}",
            model=_model_record(family, config, decoder, model),
            k=k,
            dtype=cast(Literal["fp32", "fp16", "bf16"], dtype),
            rankings=names,
            tokens=_tokens(model, image_tokens, processor.tokenizer.convert_tokens_to_ids(list(family.stops))),
            image_token=vision.settings["image"],
            vision=vision,
            graphs=records,
            files=(),
        )
        complete = bundle.finish(folder, manifest)
    return Exported(bundle.Bundle(Path(output), complete), (*notes, *said))


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder beside `folder`, for weights that have to be cast: in memory (as /tmp may be) they would be a copy."""
    with tempfile.TemporaryDirectory(
        prefix=folder.name.removesuffix("partial"), suffix=".cast", dir=folder.parent, ignore_cleanup_errors=True
    ) as scratch:
        yield Path(scratch)


def _rankings(rankings: Sequence[str] | None, k: int) -> tuple[str, ...]:
    if rankings is None:
        return ATTENTION_RANKINGS if k > 0 else ()
    names = tuple(dict.fromkeys(rankings))
    for name in names:
        if name in FREE_RANKINGS:
            raise InputError(f"expected rankings to export, found {name!r}, which needs no graph; every bundle has it")
        if name not in ATTENTION_RANKINGS:
            raise InputError(f"expected rankings of {', '.join(ATTENTION_RANKINGS)}, found {name!r}")
    if names and k == 0:
        raise InputError(
            f"expected no attention ranking at K=0, found {names[0]!r}; no layer has run there, "
            "so use random, uniform or external scores, or cut at K >= 1"
        )
    return names


def _possible(names: tuple[str, ...], text: Any, chosen: bool) -> tuple[str, ...]:
    """Rankings that this decoder can have; one that was chosen and cannot be is an error."""
    from fastv_trt.export import ranks

    for name in names if chosen else ():
        reason = ranks.obstacle(name, text)
        if reason is not None:
            raise InputError(f"expected rankings that the {text.model_type} decoder can have, found {name!r}: {reason}")
    return tuple(name for name in names if ranks.obstacle(name, text) is None)


def _model_record(family: Family, config: Any, decoder: Decoder, model: Any) -> bundle.ModelRecord:
    text = decoder.config
    return bundle.ModelRecord(
        family=family.name,
        architecture=str(config.architectures[0]),
        layers=len(decoder.layers),
        hidden_size=int(text.hidden_size),
        heads=decoder.heads,
        key_value_heads=decoder.key_value_heads,
        head_size=decoder.head_size,
        ffn_size=int(text.intermediate_size),
        vocab_size=decoder.lm_head.out_features,
        max_positions=int(text.max_position_embeddings),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        decoder=str(text.model_type),
    )


def _image_tokens(family: Family, config: Any) -> tuple[int, ...]:
    """Ids that stand for an image token, of clips too."""
    video = getattr(config, "video_token_id", None) if family.video else None
    return (int(config.image_token_id), *(() if video is None else (int(video),)))


def _vision_record(family: Family, config: Any, processor: Preprocessing) -> bundle.VisionRecord:
    """How this model's pictures become tokens.

    Raises:
        InputError: the tokenizer lacks the image token.
    """
    placeholder = processor.tokenizer.convert_ids_to_tokens(int(config.image_token_id))
    if not isinstance(placeholder, str):
        raise InputError(f"expected a tokenizer with the image token {config.image_token_id}, found none of that id")
    settings = {**family.settings(config, processor), "image": placeholder}
    video = None
    if family.video is not None:
        own = getattr(config, "video_token_id", None)
        video = (
            processor.token("video_token", "<video>") if own is None else processor.tokenizer.convert_ids_to_tokens(own)
        )
        settings["video"] = video
    return bundle.VisionRecord(
        axes=settings.pop("axes"),
        settings=settings,
        positions=family.positions,
        deepstack=family.deepstack(config),
        video_token=video,
    )


def _tokens(model: Any, image_tokens: tuple[int, ...], stops: Sequence[int]) -> bundle.TokenRecord:
    eos: Any = getattr(model.generation_config, "eos_token_id", None)
    if eos is None:
        eos = model.config.get_text_config().eos_token_id
    ids = (eos,) if isinstance(eos, int) else tuple(eos or ())
    return bundle.TokenRecord(image=image_tokens, eos=tuple(dict.fromkeys((*ids, *stops))))
