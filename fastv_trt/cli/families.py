"""fastv-trt families"""

from __future__ import annotations

import typer
from rich.table import Table

from fastv_trt.cli.common import JsonFlag, output, print_json


def families(json: JsonFlag = False) -> None:
    """List the model families that can be exported, and what is special about each."""
    from fastv_trt.families import REFUSED
    from fastv_trt.families import families as known

    rows = [
        {
            "name": family.name,
            "architectures": list(family.architectures),
            "towers": list(family.towers),
            "positions": family.positions,
            "video": family.video is not None,
            "special": family.special,
        }
        for family in known()
    ]
    if json:
        print_json({"families": rows, "refused": REFUSED})
        return
    table = Table("family", "architecture", "positions", "video", "special")
    for row in rows:
        names = "\n".join(row["architectures"])  # type: ignore[arg-type]
        table.add_row(
            str(row["name"]), names, str(row["positions"]), "yes" if row["video"] else "", str(row["special"])
        )
    output().print(table)
    for name, reason in REFUSED.items():
        typer.echo(f"refused: {name}: {reason}")
