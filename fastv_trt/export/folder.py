"""What the user pointed at: a checkpoint folder, or one of the things that are easily taken for one."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from fastv_trt.errors import InputError, UnsupportedModelError

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "qwen.tiktoken")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def checkpoint_folder(path: str | os.PathLike[str]) -> Path:
    """`path` as a folder that has a config.json and is no adapter.

    Raises:
        InputError: it is something else; says what, and what to give instead.
        UnsupportedModelError: a LoRA adapter.
    """
    folder = Path(path)
    wanted = f"expected a save_pretrained folder with config.json at {folder}, found"
    if not folder.exists():
        raise InputError(f"{wanted} nothing there{_hub_hint(os.fspath(path))}")
    if not folder.is_dir():
        raise InputError(f"{wanted} a file; give the folder that holds it")
    if (folder / "adapter_config.json").is_file():
        raise UnsupportedModelError(_adapter(folder))
    if not (folder / "config.json").is_file():
        raise InputError(f"{wanted} none{_cache_hint(folder)}")
    return folder


def refuse_without_processor(folder: Path) -> None:
    """Raise InputError if the folder lacks the files of an image processor or of a tokenizer."""
    for what, files in (("an image processor", PROCESSOR_FILES), ("a tokenizer", TOKENIZER_FILES)):
        if not any((folder / name).is_file() for name in files):
            base = read(folder / "config.json").get("_name_or_path") or "BASE"
            raise InputError(
                f"expected {what} ({' or '.join(files)}) in {folder}, found none; training often leaves it out: "
                f"AutoProcessor.from_pretrained({base!r}).save_pretrained({str(folder)!r}), BASE being the model that "
                "was trained"
            )


def read(path: Path) -> dict[str, Any]:
    """A JSON object in a file.

    Raises:
        InputError: it is none.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"expected JSON at {path}, found: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"expected a JSON object at {path}, found a {type(content).__name__}")
    return content


def _adapter(folder: Path) -> str:
    base = read(folder / "adapter_config.json").get("base_model_name_or_path") or "its base model"
    return (
        f"expected whole weights in {folder}, found a PEFT adapter of {base} (adapter_config.json), which reading the "
        "folder does not apply; merge it first: PeftModel.from_pretrained(base, adapter).merge_and_unload()"
        ".save_pretrained(FOLDER), the base's processor saved there too, and export FOLDER"
    )


def _hub_hint(text: str) -> str:
    """For a path that is nothing and looks like a model id of the hub."""
    if not _HUB_ID.fullmatch(text):
        return ""
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(text, "config.json")
    if isinstance(cached, str):
        return f"; for the hub's model of that name give the copy in this machine's cache: {Path(cached).parent}"
    return f"; nothing is downloaded here: for the hub's model of that name, hf download {text} --local-dir FOLDER"


def _cache_hint(folder: Path) -> str:
    """For a folder of the hub's cache that is above the one with the files."""
    repositories = sorted(folder.glob("models--*"))
    if repositories:
        return f"; this is a hub cache: give one of its snapshots, {repositories[0]}/snapshots/REVISION"
    snapshots = [p for p in sorted((folder / "snapshots").glob("*")) if (p / "config.json").is_file()]
    if not snapshots and folder.name == "snapshots":
        snapshots = [p for p in sorted(folder.iterdir()) if (p / "config.json").is_file()]
    if not snapshots:
        return "; a training run keeps its checkpoints in folders below" if any(folder.glob("checkpoint-*")) else ""
    main = folder / "refs" / "main"
    current = main.read_text(encoding="utf-8").strip() if main.is_file() else ""
    chosen = next((p for p in snapshots if p.name == current), snapshots[-1])
    return f"; this is a hub cache: give its snapshot {chosen}"
