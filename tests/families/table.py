"""docs/families.json -> the table in README.md, between its two markers: python -m tests.families.table"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- families: written by make families -->", "<!-- /families -->"
COLUMNS = {
    "images": "images",
    "several_images": "several images",
    "video": "video",
    "k2": "K = 2",
    "k3": "K = 3",
    "rtx_engine": "RTX engine (fp16)",
}


def table(rows: dict[str, dict[str, Any]]) -> str:
    """What was verified, as Markdown. A cell that no test filled is empty."""
    lines = [
        f"| model class | {' | '.join(COLUMNS.values())} | largest logit difference |",
        "|---" * (len(COLUMNS) + 2) + "|",
    ]
    for row in sorted(rows.values(), key=lambda row: str(row.get("architecture", ""))):
        cells = ["yes" if row.get(column) else "" for column in COLUMNS]
        worst = row.get("largest_logit_difference")
        name = str(row.get("architecture", "")).removesuffix("ForConditionalGeneration")
        lines.append(f"| {name} | {' | '.join(cells)} | {'' if worst is None else f'{worst:.0e}'} |")
    return "\n".join(lines)


def with_table(readme: str, rows: dict[str, dict[str, Any]]) -> str:
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(rows)}\n{END}{after}"


def main() -> None:
    rows = json.loads((ROOT / "docs" / "families.json").read_text(encoding="utf-8"))
    readme = ROOT / "README.md"
    readme.write_text(with_table(readme.read_text(encoding="utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    main()
