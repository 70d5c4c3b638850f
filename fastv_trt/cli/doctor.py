"""fastv-trt doctor"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fastv_trt.bundle import Bundle
from fastv_trt.cli.common import JsonFlag, mebibytes, print_json


def doctor(
    bundle: Annotated[
        Path | None, typer.Argument(help="Bundle folder: say which of its engines run here.", show_default=False)
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Say what this machine can build and run: GPUs, driver, libraries, providers; and which engines fit it."""
    from fastv_trt.engines import doctor as room

    content = room.machine()
    if bundle is not None:
        content["bundle"] = str(bundle)
        content["engines"] = room.engines(Bundle.open(bundle))
    if json:
        print_json(content)
        return
    for line in (*_machine(content), *engine_lines(content)):
        typer.echo(line)


def _machine(content: dict[str, Any]) -> list[str]:
    lines = [f"fastv-trt {content['fastv_trt']}, Python {content['python']}, {content['platform']}"]
    for gpu in content["gpus"]:
        lines.append(
            f"GPU {gpu['index']}: {gpu['name']}, compute capability {gpu['compute']}, {mebibytes(gpu['memory'])}"
        )
    if not content["gpus"]:
        lines.append(f"GPU: none ({content['no_gpu_because']})")
    lines.append(f"driver: {'CUDA ' + content['driver_cuda'] if content['driver_cuda'] else 'none'}")
    for name, library in content["libraries"].items():
        if not library["installed"]:
            lines.append(f"{name}: not installed")
            continue
        builds = ", ".join(library["builds_for"]) or "nothing without a GPU"
        runs = "runs engines here" if library["runs"] else "cannot run them here"
        lines.append(f"{name}: {library['version']}, builds for {builds}; {runs}")
    lines.append(f"ONNX Runtime providers: {', '.join(content['onnxruntime_providers'])}")
    lines.append(f"packages: {', '.join(f'{name} {version}' for name, version in content['packages'].items())}")
    return lines


def engine_lines(content: dict[str, Any]) -> list[str]:
    """One line for each target under "engines", if they were asked for: its size, and whether it runs here."""
    if "engines" not in content:
        return []
    if not content["engines"]:
        return [f"{content['bundle']}: no engines; make them with fastv-trt build"]
    lines = []
    for target in content["engines"]:
        size = f", {mebibytes(target['bytes'])}" if "bytes" in target else ""
        verdict = "runs here" if target["runs_here"] else "does not run here: " + "; ".join(target["obstacles"])
        lines.append(f"{target['target']}{size}: {verdict}")
    return lines
