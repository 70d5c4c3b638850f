"""fastv-trt verify"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fastv_trt.cli.common import BundlePath, Images, JsonFlag, Threads, names, numbers, output, print_json, steps
from fastv_trt.errors import VerificationError


def verify(
    bundle: BundlePath,
    against: Annotated[Path, typer.Option(help="The checkpoint that the bundle was exported from.")],
    ratios: Annotated[str, typer.Option(help="Values of R, separated by commas.")] = "0,0.25,0.5,0.75,0.9,1",
    rankings: Annotated[
        str | None,
        typer.Option(
            help="Rankings, separated by commas; by default all of the bundle, random and uniform.", show_default=False
        ),
    ] = None,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="The question.")] = "Describe the image.",
    image: Images = None,
    threads: Threads = None,
    json: JsonFlag = False,
) -> None:
    """Compare a bundle with its checkpoint at every boundary; exit 1 beyond tolerance."""
    from fastv_trt.bundle import Bundle
    from fastv_trt.verify import verify as compare

    opened = Bundle.open(bundle)
    with steps("verify") as on_step:
        report = compare(
            opened,
            against,
            ratios=numbers(ratios, "ratios"),
            rankings=names(rankings),
            prompt=prompt,
            images=list(image or []),
            threads=threads,
            on_case=lambda case, done, total: on_step(f"R={case.ratio:g} {case.ranking}", done, total),
        )
    record = report.record()
    opened.with_verification(record)
    if json:
        print_json(
            {
                "passed": report.passed,
                "tolerance": asdict(report.tolerance),
                "boundaries": [asdict(boundary) for boundary in report.boundaries],
                "cases": [asdict(case) for case in report.cases],
            }
        )
    else:
        _print(report)
    if not report.passed:
        raise VerificationError(
            f"expected differences within {report.tolerance}, found max |Δlogit| "
            f"{record.max_abs_logit_difference:.2g}, cosine {record.min_cosine:.6f}; do not deploy this bundle"
        )


def _print(report: object) -> None:
    from fastv_trt.verify import Report

    assert isinstance(report, Report)
    out = output()
    for boundary in report.boundaries:
        out.print(
            f"{boundary.images} image(s): vision max |Δ| {boundary.vision:.1e}, prefix max |Δ| {boundary.prefix:.1e}"
        )
    table = Table("images", "R", "ranking", "kept", "same set", "|Δscore|", "|Δlogit|", "cosine", "|norm-1|", "greedy")
    for case in report.cases:
        good = case.passed(report.tolerance)
        table.add_row(
            str(case.images),
            f"{case.ratio:g}",
            case.ranking,
            f"{case.kept}/{case.image_tokens}",
            "yes" if case.same_kept else "NO",
            "" if case.score is None else f"{case.score:.1e}",
            f"{case.logit:.1e}",
            f"{case.cosine:.7f}",
            f"{case.norm:.1e}",
            "" if case.same_tokens is None else f"{case.same_tokens} same",
            style=None if good else "bold red",
        )
    out.print(table)
    out.print("passed" if report.passed else "FAILED")
