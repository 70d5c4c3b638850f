"""Optimized graphs kept between loads, so that a second load neither optimizes nor packs weights again.

ONNX Runtime's first load of a graph rewrites it for this processor and copies the weights into the layout of its
kernels. It can write both to a file; loading that file maps the weights from disk instead of copying them. An entry
belongs to the graph's exact bytes, the ONNX Runtime that made it, and the processor. It takes about twice the weights.
Making one takes a multiple of a plain load, which pays only where a bundle is loaded often, so it has to be asked for
(FASTV_TRT_CACHE). Files are compared with their SHA-256 before they are loaded (fastv_trt/hashes.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime

from fastv_trt.bundle import Bundle
from fastv_trt.errors import InputError
from fastv_trt.hashes import Hashes, folder, sha256, write_json

FOLDER = "onnxruntime"
LIMIT = "FASTV_TRT_CACHE_GIB"
"""Environment variable: GiB that all entries together may take; the least recently used go first. 20 by default."""
MIN_BYTES = 16 << 20
"""Graphs with smaller weights load in no time as they are."""
MODEL, WEIGHTS, RECORD = "model.onnx", "weights.bin", "entry.json"


@dataclass(frozen=True)
class Entry:
    """The optimized form of one graph, made or not. `source_bytes` is the size of the graph that it is made from."""

    path: Path
    source_bytes: int

    @classmethod
    def of(cls, bundle: Bundle, graph: str) -> Entry | None:
        """The entry of a graph on this machine; None where nothing is to be kept."""
        root = folder()
        path = bundle.manifest.graphs[graph].path
        files = {f.path: f for f in bundle.manifest.files if f.path in (path, f"{path}.data")}
        size = sum(file.bytes for file in files.values())
        if root is None or size < MIN_BYTES:
            return None
        parts = [sorted(file.sha256 for file in files.values()), onnxruntime.__version__, _processor()]
        return cls(root / FOLDER / hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32], size)

    @property
    def model(self) -> Path:
        return self.path / MODEL

    def usable(self) -> bool:
        """Whether it is there and is what was written. A damaged entry is removed, to be made again."""
        try:
            wanted = json.loads((self.path / RECORD).read_text(encoding="utf-8"))["sha256"]
            hashes = Hashes(self.path)
            for name, digest in wanted.items():
                if hashes.sha256(self.path / name) != digest:
                    raise ValueError(name)
            hashes.save()
            with contextlib.suppress(OSError):  # entries may be there to be read only
                os.utime(self.path / RECORD)  # when it was last used
        except FileNotFoundError:
            return False
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self.remove()
            return False
        return True

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    @contextlib.contextmanager
    def writing(self, options: Any) -> Iterator[None]:
        """While active, a session made with `options` writes itself here; the entry appears when it is whole.

        A cache that cannot be written (no space, no rights) is no failure: the session is as good without it.
        """
        try:
            if not _room(self.path.parent, 3 * self.source_bytes):
                raise OSError
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary = Path(tempfile.mkdtemp(prefix=".", suffix=".partial", dir=self.path.parent))
        except OSError:
            yield
            return
        try:
            options.optimized_model_filepath = str(temporary / MODEL)
            for key, value in _SAVING.items():
                options.add_session_config_entry(key, value)
            yield
            with contextlib.suppress(OSError):
                names = [name for name in (MODEL, WEIGHTS) if (temporary / name).exists()]
                hashes = {name: sha256(temporary / name) for name in names}
                write_json(temporary / RECORD, {"sha256": hashes})
                temporary.rename(self.path)  # fails if another process was first, whose entry is as good
                _evict(self.path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


_SAVING = {
    "session.optimized_model_external_initializers_file_name": WEIGHTS,
    "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
    "session.save_external_prepacked_constant_initializers": "1",
}


def _room(path: Path, needed: int) -> bool:
    """Whether the file system of `path`, which need not exist, has `needed` bytes and a tenth of itself left."""
    while not path.exists():
        path = path.parent
    usage = shutil.disk_usage(path)
    return usage.free - needed > usage.total // 10


def _evict(newest: Path) -> None:
    """Remove the least recently used entries until all together are within the limit."""
    limit = _limit()
    entries = []
    for entry in newest.parent.iterdir():
        record = entry / RECORD
        if record.exists():
            entries.append((record.stat().st_mtime, sum(f.stat().st_size for f in entry.iterdir()), entry))
    total = sum(size for _, size, _ in entries)
    for _, size, entry in sorted(entries):
        if total > limit and entry != newest:
            shutil.rmtree(entry, ignore_errors=True)
            total -= size


def _limit() -> float:
    text = os.environ.get(LIMIT, "20")
    try:
        return float(text) * 2**30
    except ValueError as error:
        raise InputError(f"expected {LIMIT} as a number of GiB, found {text!r}") from error


def _processor() -> str:
    """What the packed weights depend on: the processor's family and instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("vendor_id", "cpu family", "model", "flags", "CPU implementer", "CPU part", "Features")
    first = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in reversed(lines)}
    return f"{platform.machine()} " + " ".join(first.get(key, "") for key in wanted)
