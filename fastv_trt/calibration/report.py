"""The table as text: columns for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from fastv_trt.calibration.statistics import Interval
from fastv_trt.calibration.table import Row, Table

HEAD = ("K", "ranking", "amount", "kept", "samples", "accuracy", "against R=0", "as R=0", "KL", "TTFT", "of R=0", "")


def columns(table: Table) -> tuple[str, ...]:
    """Headings; those of measures that the samples do not have are left out."""
    return tuple(name for name, used in zip(HEAD, _used(table), strict=True) if used)


def cells(table: Table, row: Row) -> tuple[str, ...]:
    """One row as text. The last cell says what became of the point."""
    shown = (
        str(row.point.k),
        "none" if row.point.reference else row.point.pruning.ranking,
        row.point.amount,
        f"{100 * row.kept:.1f}%",
        str(row.samples),
        "" if row.accuracy is None else f"{row.accuracy.estimate:.1f}",
        f"{row.measured.estimate:+.1f} [{row.measured.low:+.1f}, {row.measured.high:+.1f}]",
        interval(row.agreement) if table.budget.measure == "agreement" else f"{row.agreement.estimate:.1f}",
        f"{row.kl if row.kl_forced is None else row.kl_forced:.4f}",
        f"{1e3 * row.ttft:.1f} ms",
        f"{row.ttft_ratio.estimate:.3f}",
        verdict(table, row),
    )
    return tuple(text for text, used in zip(shown, _used(table), strict=True) if used)


def interval(value: Interval) -> str:
    return f"{value.estimate:.1f} [{value.low:.1f}, {value.high:.1f}]"


def verdict(table: Table, row: Row) -> str:
    """What became of a point."""
    if row.point.reference:
        return "reference"
    if row.cut:
        return "given up"
    if table.recommended is row:
        return "recommended"
    words = ["front"] if row in table.front else []
    words += ["in budget"] if table.inside(row) else []
    return ", ".join(words)


def markdown(table: Table, rows: Sequence[Row] | None = None) -> str:
    """A Markdown table of `rows`, by default all."""
    head = columns(table)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cells(table, row)) + " |" for row in (table.rows if rows is None else rows)]
    return "\n".join(lines) + "\n"


def summary(table: Table) -> str:
    """The recommendation in one line."""
    best = table.recommended
    if best is None:
        return f"no point keeps to {table.budget}"
    measured = best.measured
    unit = {"accuracy": "points", "agreement": "%"}.get(table.budget.measure, "nats")
    return (
        f"recommended: {best.point.name}: {table.budget.measure} {measured.estimate:+.2f} {unit} "
        f"[{measured.low:+.2f}, {measured.high:+.2f}], TTFT x {best.ttft_ratio.estimate:.3f}, "
        f"{100 * best.kept:.1f}% of image tokens kept ({best.samples} samples, confidence {table.confidence:g})"
    )


def adaptive(table: Table) -> str:
    """The masses beside the fixed R of the same average cost, as a Markdown table; empty if none was asked for."""
    if not table.comparisons:
        return ""
    what = "accuracy" if table.rows[0].accuracy is not None else "as R=0"
    head = ("K", "ranking", "mass", "kept", what, "fixed", "kept", what, "adaptive less fixed", "samples")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for c in table.comparisons:
        pruning = c.adaptive.point.pruning
        quality = [interval(row.accuracy or row.agreement) for row in (c.adaptive, c.fixed)]
        values = (
            str(c.adaptive.point.k),
            pruning.ranking,
            f"{pruning.mass:.4f}",
            f"{100 * c.adaptive.kept:.1f}%",
            quality[0],
            c.fixed.point.amount,
            f"{100 * c.fixed.kept:.1f}%",
            quality[1],
            f"{c.difference.estimate:+.1f} [{c.difference.low:+.1f}, {c.difference.high:+.1f}]",
            str(c.samples),
        )
        lines.append("| " + " | ".join(values) + " |")
    return "\n".join(lines) + "\n"


def _used(table: Table) -> tuple[bool, ...]:
    answered = table.rows[0].accuracy is not None
    return tuple(
        {"accuracy": answered, "against R=0": table.budget.measure == "accuracy"}.get(name, True) for name in HEAD
    )
