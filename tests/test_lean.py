"""`fastv-trt run` as a process leaves PyTorch out, though it is installed."""

from __future__ import annotations

import subprocess
import sys

from PIL import Image

from fastv_trt.bundle import Bundle
from tests.conftest import picture


def test_running_a_bundle_does_not_import_pytorch(bundle: Bundle, tmp_path: object) -> None:
    path = f"{tmp_path}/a.png"
    Image.fromarray(picture(0)).save(path)
    arguments = ["run", str(bundle.path), "-p", "what?", "-i", path, "--json", "--max-new-tokens", "2"]
    code = (
        f"import sys; sys.argv[1:] = {arguments!r}\n"
        "from fastv_trt.cli import program\n"
        "try: program()\n"
        "except SystemExit as end: print('code', end.code or 0)\n"
        "print('torch', sys.modules.get('torch'), 'torch.nn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "code 0" in done.stdout and "torch None False" in done.stdout, done.stderr
    assert '"kept_tokens": 12' in done.stdout
