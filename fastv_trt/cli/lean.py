"""Keeping PyTorch out of a process that runs a bundle: transformers imports it wherever it is installed."""

from __future__ import annotations

import sys
from typing import Any

from fastv_trt.bundle import Bundle

FAMILIES = ("llava",)
"""Families whose processors are known to need no PyTorch. Those with a video processor do need it."""
one_command = False
"""Set by `fastv_trt.cli.program`: nothing else will run in this process, so no one can miss PyTorch later."""


def hide_torch(bundle: Bundle) -> None:
    """Let transformers find no PyTorch, if it has not yet, and if this bundle's processor can do without.

    It saved about 300 MB in the peak of `run` where it was tried; the runtime itself never imports it.
    """
    if one_command and bundle.manifest.model.family in FAMILIES and "transformers" not in sys.modules:
        modules: dict[str, Any] = sys.modules
        modules.setdefault("torch", None)
