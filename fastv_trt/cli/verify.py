"""fastv-trt verify"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fastv_trt.cli.common import (
    AllowPickle,
    BundlePath,
    Images,
    JsonFlag,
    Threads,
    names,
    numbers,
    output,
    print_json,
    steps,
)
from fastv_trt.errors import InputError, VerificationError

if TYPE_CHECKING:
    from fastv_trt.bundle import Bundle
    from fastv_trt.verify import EngineReport


def verify(
    bundle: BundlePath,
    against: Annotated[
        Path | None,
        typer.Option(help="Compare with the checkpoint that the bundle was exported from.", show_default=False),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Compare a target that build made (or auto: the first that runs here) with ONNX Runtime, graph by "
            "graph, on this machine's GPU.",
            show_default=False,
        ),
    ] = None,
    ratios: Annotated[
        str | None,
        typer.Option(
            help="Values of R, separated by commas; by default 0,0.25,0.5,0.75,0.9,1, and 0,0.5,0.9 for engines.",
            show_default=False,
        ),
    ] = None,
    rankings: Annotated[
        str | None,
        typer.Option(
            help="Rankings, separated by commas; by default all of the bundle, and against a checkpoint also random "
            "and uniform.",
            show_default=False,
        ),
    ] = None,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="The question.")] = "Describe the image.",
    image: Images = None,
    threads: Threads = None,
    allow_pickle: AllowPickle = False,
    json: JsonFlag = False,
) -> None:
    """Compare a bundle with its checkpoint, or engines with their bundle; exit 1 beyond tolerance."""
    from fastv_trt.bundle import Bundle

    if (against is None) == (engine is None):
        found = "neither" if engine is None else "both"
        raise InputError(f"expected --against CHECKPOINT or --engine TARGET, found {found}; give one")
    opened = Bundle.open(bundle)
    common: dict[str, Any] = {"prompt": prompt, "images": list(image or []), "threads": threads}
    if ratios is not None:
        common["ratios"] = numbers(ratios, "ratios")
    if rankings is not None:
        common["rankings"] = names(rankings)
    if against is None:
        tested = self_test(opened, engine, **common)
        if json:
            print_json(
                {
                    "passed": tested.passed,
                    "target": tested.target,
                    "differences": [asdict(d) for d in tested.differences],
                }
            )
        conclude(tested, quiet=json)
        return
    from fastv_trt.verify import verify as compare

    with steps("verify") as on_step:
        report = compare(
            opened,
            against,
            **common,
            allow_pickle=allow_pickle,
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


def self_test(bundle: Bundle, engine: str | None, **options: Any) -> EngineReport:
    """Compare engines with ONNX Runtime on this machine's GPU, and keep the figures beside engine.json.

    Raises:
        UnavailableError: no GPU that these engines run on.
    """
    from fastv_trt.runtime import trt
    from fastv_trt.runtime.devices import ANY_ENGINE
    from fastv_trt.verify import verify_engine

    device = trt.device(bundle, None if engine == ANY_ENGINE else engine, trust_self_test=False)
    target = device.target
    with steps("verify engines") as on_step:
        report = verify_engine(
            bundle, device, target=target.name, limits=target.manifest.limits, on_point=on_step, **options
        )
    target.with_self_test(report.record())
    return report


def conclude(report: EngineReport, quiet: bool = False) -> None:
    """Show a comparison of engines; raise VerificationError if it failed."""
    if not quiet:
        table = Table("graph", "kind", "output", "calls", "cosine", "|norm-1|", "max |Δ|")
        for one in report.differences:
            table.add_row(
                one.graph,
                one.kind,
                one.output,
                str(one.calls),
                f"{one.cosine:.7f}",
                f"{one.norm:.1e}",
                f"{one.largest:.1e}",
                style=None if report.good(one) else "bold red",
            )
        out = output()
        out.print(table)
        out.print(f"{report.target}: {'passed' if report.passed else 'FAILED'}")
    if not report.passed:
        bad = ", ".join(f"{d.graph} {d.kind} {d.output}" for d in report.differences if not report.good(d))
        raise VerificationError(
            f"expected engines of {report.target} with cosine >= {report.least_cosine} and norm within "
            f"{report.most_norm} of ONNX Runtime's, found otherwise in {bad}; do not deploy them"
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
