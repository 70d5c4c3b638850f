"""SHA-256 of files, and where asked for, what it was when a file that has not changed was last read.

Every file of a bundle is compared with its hash before it is used. For gigabytes of weights that is most of a load, so
a user who loads a bundle often can have hashes remembered (FASTV_TRT_CACHE). A file is then not read again while its
device, inode, size, and times of its content and of its inode are the same; no ordinary program can set the last.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

FOLDER = "FASTV_TRT_CACHE"
"""Environment variable: "on" keeps what makes a second load fast in the user's cache folder, anything else names a
folder. Unset or "off" keeps nothing."""
SETTLED = 2.0
"""Seconds: a file that changed more recently is not remembered, because a further change could carry the same times."""


def folder() -> Path | None:
    """Where things are kept between loads; None if that is switched off."""
    given = os.environ.get(FOLDER)
    if not given or given == "off":
        return None
    if given != "on":
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fastv-trt"


def sha256(path: Path) -> str:
    """SHA-256 of a file as 64 hex digits, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Hashes:
    """Hashes of the files under one folder. `save` keeps them for the next process; a failure to do so is none.

    Attributes:
        read: files that had to be read.
    """

    def __init__(self, root: Path) -> None:
        self.read: list[Path] = []
        self._known: dict[str, Any] = {}
        kept, name = folder(), hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:32]
        self._path = None if kept is None else kept / "hashes" / f"{name}.json"
        if self._path is not None:
            with contextlib.suppress(OSError, ValueError, TypeError):
                self._known = dict(json.loads(self._path.read_text(encoding="utf-8")))

    def sha256(self, path: Path) -> str:
        """The hash of a file, from memory if it has not changed.

        Raises:
            OSError: it cannot be read.
        """
        key, stamp = str(path), _stamp(path)
        match self._known.get(key):
            case [then, str(digest)] if then == stamp:
                return digest
        self.read.append(path)
        digest = sha256(path)
        settled = time.time_ns() - max(stamp[-2:]) > SETTLED * 1e9
        if settled and _stamp(path) == stamp:
            self._known[key] = [stamp, digest]
        return digest

    def save(self) -> None:
        """Keep what was read. Call it when all files were as expected."""
        if self._path is not None and self.read:
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_json(self._path, self._known)


def write_json(path: Path, content: object) -> None:
    """Write a file whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(content, file)
    Path(name).replace(path)


def _stamp(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
