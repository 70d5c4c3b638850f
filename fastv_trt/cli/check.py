"""fastv-trt check"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from fastv_trt.bundle import Bundle
from fastv_trt.cli.build import Capacity, Compute, Decomposable, Kept, MaxBatch, MaxImages, MaxPrompt, limits_of
from fastv_trt.cli.common import BundlePath, JsonFlag, console, names, print_json
from fastv_trt.errors import InputError


def check(
    bundle: BundlePath,
    backend: Annotated[
        str | None,
        typer.Option(
            help="Ask its parser too: tensorrt or tensorrt-rtx; by default the one that is installed.",
            show_default=False,
        ),
    ] = None,
    compute: Compute = None,
    max_prompt: MaxPrompt = None,
    max_images: MaxImages = 4,
    max_batch: MaxBatch = 8,
    kept: Kept = None,
    capacity: Capacity = None,
    decomposable: Decomposable = False,
    json: JsonFlag = False,
) -> None:
    """Say whether a bundle's graphs can be compiled, and if not, which node, why, and what to do. Exits 2 if not."""
    from fastv_trt import engines

    opened = Bundle.open(bundle)
    limits = limits_of(opened, max_prompt, max_images, max_batch, kept, capacity)
    report = engines.examine(opened, limits, names(compute), backend, decomposable)
    for note in report.notes:
        console.print(f"note: {note}")
    if json:
        print_json({"ok": report.ok, "parser": report.parser, "findings": [asdict(f) for f in report.findings]})
    elif report.ok:
        asked = f"and {report.parser} parses them" if report.parser else "by the rules alone"
        typer.echo(f"{bundle}: {', '.join(opened.manifest.graphs)} can be compiled, {asked}")
    else:
        for text in report.lines:
            typer.echo(text)
    if not report.ok:
        raise InputError(f"expected graphs that can be compiled, found {len(report.findings)} reasons against it")
