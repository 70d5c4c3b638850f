"""The first Qwen's tokenizer: a file of ranks in tiktoken's form, and a list of special tokens that stands in code."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any

from fastv_trt.errors import InputError

# How text is split before merging; as published with the tokenizer.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205)))
MARKS = ("<ref>", "</ref>", "<box>", "</box>", "<quad>", "</quad>")  # of answers: they are text to a reader
PICTURE = ("<img>", "</img>", "<imgpad>")


def load(path: Path, image_start_id: int) -> Any:
    """A fast tokenizer from a tiktoken file.

    Args:
        path: lines of a base64 token and its rank.
        image_start_id: what config.json has for <img>.

    Raises:
        InputError: no such file, not of that form, or of another size than the config says.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ranks = _ranks(path)
    found = len(ranks) + len(CONTROL) + len(MARKS)
    if found != image_start_id:
        raise InputError(f"expected <img> as token {image_start_id}, as in config.json, found {found} by {path}")
    text = {token: _printable(token) for token in ranks}
    merges = [
        (text[token[:cut]], text[token[cut:]])
        for token in sorted(ranks, key=ranks.__getitem__)
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
    vocabulary = {text[token]: rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for name in (*CONTROL, *MARKS, *PICTURE):
        tokenizer.add_tokens([AddedToken(name, normalized=False, special=name not in MARKS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )


def _ranks(path: Path) -> dict[bytes, int]:
    if not path.is_file():
        raise InputError(f"expected the tokenizer's file at {path}, found none; is the download complete?")
    try:
        pairs = [line.split() for line in path.read_bytes().splitlines() if line.strip()]
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except (ValueError, binascii.Error) as error:
        raise InputError(f"expected lines of a base64 token and its rank in {path}, found: {error}") from error
    if sorted(ranks.values()) != list(range(len(ranks))) or any(bytes([byte]) not in ranks for byte in range(256)):
        raise InputError(f"expected ranks 0, 1, 2, ... and every single byte in {path}, found gaps")
    return ranks


def _printable(token: bytes) -> str:
    """Bytes as the characters that byte-level BPE writes for them: printable Latin-1 as it is, the rest from 256 on."""
    return "".join(_CHARACTERS[byte] for byte in token)


def _characters() -> dict[int, str]:
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


_CHARACTERS = _characters()
