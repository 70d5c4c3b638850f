"""fastv-trt calibrate"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as Printed

from fastv_trt.cli.common import BundlePath, JsonFlag, Threads, console, names, numbers, output, print_json
from fastv_trt.errors import FastVError, InputError

SamplesPath = Annotated[
    Path,
    typer.Argument(
        metavar="SAMPLES",
        help="JSONL file of {image|images, prompt, answer?}, pictures relative to it; or a folder of pictures.",
        show_default=False,
    ),
]
Metric = Annotated[
    str,
    typer.Option(help="How an answer is judged: exact, contains, module:function or file.py:function."),
]
FolderPrompt = Annotated[str, typer.Option("--prompt", "-p", help="Asked about each of a folder's pictures.")]


def calibrate(
    bundle: BundlePath,
    samples: SamplesPath,
    k: Annotated[
        str | None,
        typer.Option("--k", help="Cuts to try, separated by commas; by default the bundle's own.", show_default=False),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="What the bundle was exported from, to cut it at another K.", show_default=False)
    ] = None,
    ratios: Annotated[str, typer.Option(help="Values of R; R=0 is always measured.")] = "0.25,0.5,0.625,0.75,0.875,0.9",
    rankings: Annotated[
        str | None,
        typer.Option(help="By default all of the bundle, diversity, random and uniform.", show_default=False),
    ] = None,
    mass: Annotated[
        str | None, typer.Option(help="Adaptive keep: shares of the image attention to try.", show_default=False)
    ] = None,
    target_keep: Annotated[
        str | None,
        typer.Option(
            help="Adaptive keep: mean shares of image tokens; the mass that costs as much is found, and measured "
            "beside the fixed R of the same cost.",
            show_default=False,
        ),
    ] = None,
    min_keep: Annotated[int, typer.Option(help="Adaptive keep never keeps fewer image tokens.")] = 1,
    budget: Annotated[
        str | None,
        typer.Option(
            help="'accuracy >= -0.5' (points against R=0), 'agreement >= 95' (%), 'kl <= 0.05' or 'kl-forced <= 0.05' "
            "(nats). By default accuracy >= -1 with answers, agreement >= 95 without.",
            show_default=False,
        ),
    ] = None,
    decide: Annotated[
        str, typer.Option(help="bound: the confidence bound keeps to the budget; or estimate.")
    ] = "bound",
    confidence: Annotated[float, typer.Option(help="Of the bounds, one-sided.")] = 0.95,
    metric: Metric = "exact",
    prompt: FolderPrompt = "Describe the image.",
    max_new_tokens: Annotated[int, typer.Option(help="Per answer.")] = 32,
    validate: Annotated[
        Path | None,
        typer.Option(help="Other samples: the recommended point is measured again on them.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="For the report, plots, state and other cuts.")] = Path("calibration"),
    write: Annotated[bool, typer.Option("--write/--no-write", help="Make the point the bundle's default.")] = True,
    cut: Annotated[bool, typer.Option("--cut/--no-cut", help="Give up points early that cannot win.")] = True,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw tradeoff.png and heatmap.png.")] = True,
    threads: Threads = None,
    json: JsonFlag = False,
) -> None:
    """Find the cheapest K, R and ranking that keep a quality budget on your samples, and make it the default."""
    from fastv_trt.bundle import Bundle
    from fastv_trt.calibration import Budget, Grid, Samples, Settings
    from fastv_trt.calibration import calibrate as room
    from fastv_trt.calibration.recommend import nothing_inside, write_operating_point
    from fastv_trt.calibration.report import summary

    opened = Bundle.open(bundle)
    read = Samples.read(samples, prompt=prompt)
    settings = Settings(
        budget=Budget.parse(budget or ("accuracy >= -1" if read.answered else "agreement >= 95")),
        decision=decide,  # type: ignore[arg-type]  # Settings checks it
        confidence=confidence,
        metric=metric,
        new_tokens=max_new_tokens,
        cut=cut,
    )
    settings.check(read)
    others = None if validate is None else Samples.read(validate, prompt=prompt)
    if others is not None and others.sha256 == read.sha256:
        raise InputError(f"expected other samples to validate on, found the same in {validate}")
    grid = Grid(
        ratios=numbers(ratios, "ratios"),
        rankings=names(rankings),
        masses=() if mass is None else numbers(mass, "masses"),
        target_keeps=() if target_keep is None else numbers(target_keep, "target shares"),
        min_keep=min_keep,
    )
    if plots:
        _require_matplotlib()
    with progress() as on_progress:
        found = room(
            opened,
            read,
            settings,
            out,
            grid=grid,
            ks=None if k is None else _cuts(k),
            checkpoint=checkpoint,
            threads=threads,
            on_progress=on_progress,
        )
    if plots:
        from fastv_trt.calibration.plots import draw

        draw(found.table, out)
    content: dict[str, Any] = {**found.table.content(), "bundle": None, "validation": None}
    if not json:
        _print(found.table)
    if found.bundle is None:
        if json:
            print_json(content)
        raise FastVError(nothing_inside(found.table))
    inside = True
    if others is not None:
        checked, inside = _validate(found, others, settings, out / "validation", threads)
        content["validation"] = checked.content()
        if not json:
            _print(checked)
    if write and inside:
        written = write_operating_point(found, read)
        content["bundle"] = str(written.path)
    if json:
        print_json(content)
    else:
        typer.echo(summary(found.table))
    if not inside:
        raise FastVError(f"expected the recommended point inside {settings.budget} on {validate} too, found it outside")
    if write:
        console.print(f"{content['bundle']} uses it by default now; report, plots and state are in {out}")


def _validate(found: Any, others: Any, settings: Any, folder: Path, threads: int | None) -> tuple[Any, bool]:
    from fastv_trt.calibration import validate as again

    table = again(found.bundle, found.table.recommended, others, settings, folder, threads=threads)
    return table, table.recommended is not None


def _cuts(text: str) -> tuple[int, ...]:
    values = numbers(text, "cuts")
    if any(value != int(value) or value < 0 for value in values):
        raise InputError(f"expected cuts as whole numbers of 0 or more, found {text!r}")
    return tuple(int(value) for value in values)


def _require_matplotlib() -> None:
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise InputError("expected matplotlib for the plots, found none; pip install 'fastv-trt[calibration]'")


def _print(table: Any) -> None:
    from fastv_trt.calibration.report import cells, columns

    out = output()
    best = table.recommended
    printed = Printed(*columns(table))
    for row in table.rows:
        style = "bold green" if row is best else "dim" if row.cut else None
        printed.add_row(*(text.replace("[", "\\[") for text in cells(table, row)), style=style)
    out.print(printed)


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar with the time left: call the result with (what, done, total)."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("calibrate", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield show
