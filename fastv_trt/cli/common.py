"""What several commands share: option types, the console, parsing of lists."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fastv_trt.bundle import Manifest
from fastv_trt.errors import InputError
from fastv_trt.pruning import Pruning

BundlePath = Annotated[Path, typer.Argument(help="Bundle folder, made by `fastv-trt export`.", show_default=False)]
CheckpointPath = Annotated[
    Path, typer.Argument(help="Checkpoint folder, as `save_pretrained` writes it.", show_default=False)
]
AllowPickle = Annotated[
    bool,
    typer.Option(
        "--allow-pickle",
        help="Read weights from .bin files if there are no safetensors. A pickle can run code when it is read, so they "
        "are refused by default; with this, torch unpickles tensors and nothing else (weights_only). Better: convert.",
    ),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; by default all cores.", show_default=False)]
Device = Annotated[
    str, typer.Option(help="ONNX Runtime's provider: cpu, cuda, tensorrt or tensorrt-rtx. None replaces another.")
]
Engine = Annotated[
    str | None,
    typer.Option(
        help="Run engines instead: a target that build made, or auto for the first that runs here.", show_default=False
    ),
]
Images = Annotated[
    list[Path] | None,
    typer.Option("--image", "-i", help="A picture of the prompt; repeat it for several.", show_default=False),
]
Videos = Annotated[
    list[Path] | None,
    typer.Option("--video", help="A video of the prompt: a file, or a folder of pictures.", show_default=False),
]
Frames = Annotated[
    int | None,
    typer.Option(help="Frames taken of each video; by default as the model's family does.", show_default=False),
]
Ratio = Annotated[
    float | None,
    typer.Option(
        "--ratio",
        "-r",
        help="R, share of image tokens to drop after layer K, 0 to 1. By default what the bundle was calibrated to, "
        "or 0.5.",
        show_default=False,
    ),
]
Keep = Annotated[int | None, typer.Option(help="Image tokens to keep, instead of --ratio.", show_default=False)]
Mass = Annotated[
    float | None,
    typer.Option(
        help="Keep the fewest image tokens that get this share of the image attention, instead of --ratio.",
        show_default=False,
    ),
]
MinKeep = Annotated[int, typer.Option(help="With --mass: keep no fewer image tokens.")]
MaxKeep = Annotated[int | None, typer.Option(help="With --mass: keep no more image tokens.", show_default=False)]
Ranking = Annotated[
    str | None,
    typer.Option(
        help="last-query, received, last-query-norope, key-norm, dart, diversity, random or uniform. By default what "
        "the bundle was calibrated to, or its first, or random at K=0.",
        show_default=False,
    ),
]
Scope = Annotated[
    str,
    typer.Option(
        help="all: one pool for all images; image: a share for each; frame: a share for each frame of a video."
    ),
]

console = Console(stderr=True, highlight=False)
"""Progress and notes go to stderr, so that stdout holds the result alone."""


def output() -> Console:
    """The console for tables on stdout: a pipe or a file gets them in full width, not cut at 80 columns."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=140)


def pruning_of(
    manifest: Manifest,
    ratio: float | None,
    keep: int | None,
    ranking: str | None,
    scope: str,
    seed: int,
    required: bool = False,
    mass: float | None = None,
    min_keep: int = 0,
    max_keep: int | None = None,
) -> Pruning:
    """A policy from the command line's options.

    What is left out comes from the bundle's calibrated operating point: all of it if neither an amount (ratio, keep,
    mass) nor a ranking is given. Without one, R is 0.5 and the ranking the bundle's first.
    """
    point = manifest.operating_point
    if (ratio, keep, mass, ranking) == (None, None, None, None) and point is not None:
        return replace(Pruning(**point.pruning.model_dump()), required=required)
    first = point.pruning.ranking if point is not None else (*manifest.rankings, "random")[0]
    return Pruning(
        ratio=0.5 if ratio is None and keep is None and mass is None else ratio,
        keep=keep,
        ranking=ranking or first,
        scope=scope,  # type: ignore[arg-type]  # Pruning checks it
        seed=seed,
        required=required,
        mass=mass,
        min_keep=min_keep,
        max_keep=max_keep,
    )


def numbers(text: str, what: str) -> tuple[float, ...]:
    """Numbers from a comma-separated list.

    Raises:
        InputError: an item is not a number.
    """
    try:
        return tuple(float(item) for item in text.split(","))
    except ValueError as error:
        raise InputError(f"expected {what} as numbers separated by commas, found {text!r}") from error


def names(text: str | None) -> tuple[str, ...] | None:
    """Names from a comma-separated list; None stays None."""
    return None if text is None else tuple(item.strip() for item in text.split(",") if item.strip())


def print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False))


@contextmanager
def steps(title: str) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar over named steps: call the result with (step, index, total)."""
    columns = (SpinnerColumn(), TextColumn(title), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)

        def show(step: str, done: int, total: int) -> None:
            progress.update(task, description=step, completed=done, total=total)

        yield show


def mebibytes(count: float) -> str:
    """Bytes as text: 1.2 KiB, 3.4 MiB, 5.6 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"
