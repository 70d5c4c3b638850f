"""Export holds no copy of a model: it works where the weights do not fit twice, cast or not."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.make_model import make
from fastv_trt.bundle import Bundle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc and sets RLIMIT_DATA"),
]


def export_within(limit: int, *arguments: str) -> tuple[subprocess.Popen[str], str, int]:
    """Run `fastv-trt export` with RLIMIT_DATA = `limit` bytes: (process, stderr, largest anonymous memory).

    RLIMIT_DATA counts private memory that may be written, touched or not: the heap, and weights that are mapped
    copy-on-write. It is stricter than a limit of physical memory, and any user may set it.
    """
    export = [sys.executable, "-c", "from fastv_trt.cli import main; main()", "export", *arguments]
    limited = ["sh", "-c", f'ulimit -d {limit >> 10} && exec "$@"', "sh", *export]
    process = subprocess.Popen(limited, stderr=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        anonymous = [int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")]
        peak = max(peak, *anonymous, 0)
        time.sleep(0.02)
    assert process.stderr is not None
    return process, process.stderr.read(), peak << 10


@pytest.mark.parametrize("stored", ["fp32", "bf16"])
def test_export_within_1_6_times_the_weights(stored: str, tmp_path: Path) -> None:
    make(tmp_path / "checkpoint", stored)
    weights = sum(file.stat().st_size for file in (tmp_path / "checkpoint").glob("*.safetensors"))
    weights *= 1 if stored == "fp32" else 2  # as they are exported, in fp32
    process, err, anonymous = export_within(weights * 8 // 5, str(tmp_path / "checkpoint"), str(tmp_path / "bundle"))
    assert process.returncode == 0, err
    # What cannot be given back when memory is short: the libraries, and a piece of the weights.
    assert anonymous < 0.6 * weights
    assert Bundle.open(tmp_path / "bundle").weight_bytes > 0.95 * weights
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint", "bundle"}
    shutil.rmtree(tmp_path / "bundle")
