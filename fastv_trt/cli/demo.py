"""fastv-trt demo"""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fastv_trt.cli.common import JsonFlag, Threads, console, mebibytes, output, print_json, steps
from fastv_trt.errors import InputError

RATIOS = (0.0, 0.5, 0.75)
PICTURES = 3  # of the samples, drawn
REPEATS = 5  # timings are the fastest of these


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the bundle and the pictures.")] = Path("demo-output"),
    k: Annotated[int, typer.Option("--k", help="Cut before this decoder layer.")] = 2,
    threads: Threads = None,
    json: JsonFlag = False,
) -> None:
    """Answer the demo model's sample questions with 0, 50 and 75 % of each picture dropped."""
    from fastv_trt.bundle import Bundle
    from fastv_trt.pruning import Pruning
    from fastv_trt.runtime import Limits, Runtime
    from fastv_trt.runtime.picture import draw_kept

    home = demo_home()
    samples = [jsonlib.loads(line) for line in (home / "samples" / "samples.jsonl").read_text("utf-8").splitlines()]
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"bundle-k{k}"
    if not path.exists():
        from fastv_trt import export as room

        with steps("export the demo model") as on_step:
            room.export(home / "checkpoint", path, k=k, on_step=on_step)
    runtime = Runtime.load(Bundle.open(path), threads=threads)
    limits = Limits(new_tokens=8)
    ranking = (*runtime.bundle.manifest.rankings, "random")[0]
    rows: list[dict[str, Any]] = []
    for index, sample in enumerate(samples):
        for ratio in RATIOS:
            policy = Pruning(ratio=ratio, ranking=ranking)
            request = runtime.request(sample["prompt"], [home / "samples" / sample["image"]])
            answers = [runtime.answers([request], policy, limits)[0] for _ in range(REPEATS)]
            answer = min(answers, key=lambda a: a.prefill.ttft)
            rows.append(
                {
                    "image": sample["image"],
                    "prompt": sample["prompt"],
                    "expected": sample["answer"],
                    "ratio": ratio,
                    "answer": answer.text,
                    "kept_tokens": answer.kept_tokens,
                    "image_tokens": answer.image_tokens,
                    "ttft_seconds": answer.prefill.ttft,
                    "decoder_seconds": sum(answer.timings[part] for part in ("prefix", "rank+select", "suffix")),
                    "kv_bytes": answer.kv_bytes,
                }
            )
            if index < PICTURES and ratio:
                title = f"{sample['prompt']}  ->  {answer.text}   (K={k}, R={ratio:.0%})"
                draw_kept(request, answer.prefill, out / f"kept-{index + 1}-r{round(100 * ratio)}.png", title)
    content = {"bundle": str(path), "k": k, "ranking": ranking, "rows": rows, "summary": summary(rows)}
    (out / "results.json").write_text(jsonlib.dumps(content, indent=2) + "\n", encoding="utf-8")
    if json:
        print_json(content)
        return
    _print(content)
    pictures = ", ".join(sorted(p.name for p in out.glob("kept-*.png")))
    console.print(f"pictures and results.json in {out}: {pictures}")
    console.print(f'try: fastv-trt run {path} -i YOUR.png -p "What digit is red?" --ratio 0.9 --save-kept kept.png')


def demo_home() -> Path:
    """The folder with the demo's checkpoint and samples: inside the wheel, or in the repository.

    Raises:
        InputError: it is in neither.
    """
    package = Path(__file__).resolve().parents[1]
    for home in (package / "_demo", package.parent / "examples" / "tiny_llava"):
        if (home / "checkpoint" / "config.json").is_file():
            return home
    raise InputError(
        "expected the demo checkpoint beside the package, found none; clone the repository to run the demo"
    )


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per ratio: right answers, mean decoder time and caches, and both against R = 0."""
    result = []
    base = [row for row in rows if row["ratio"] == 0.0]
    for ratio in RATIOS:
        part = [row for row in rows if row["ratio"] == ratio]
        result.append(
            {
                "ratio": ratio,
                "right": sum(row["answer"] == row["expected"] for row in part),
                "same_as_unpruned": sum(a["answer"] == b["answer"] for a, b in zip(part, base, strict=True)),
                "questions": len(part),
                "kept_tokens": sum(row["kept_tokens"] for row in part) / len(part),
                "ttft_seconds": _mean(part, "ttft_seconds"),
                "decoder_ratio": _mean(part, "decoder_seconds") / _mean(base, "decoder_seconds"),
                "kv_bytes": _mean(part, "kv_bytes"),
                "kv_ratio": _mean(part, "kv_bytes") / _mean(base, "kv_bytes"),
            }
        )
    return result


def _mean(rows: list[dict[str, Any]], key: str) -> float:
    return float(sum(row[key] for row in rows) / len(rows))


def _print(content: dict[str, Any]) -> None:
    out = output()
    table = Table("picture", "question", "expected", *(f"R={ratio:.0%}" for ratio in RATIOS))
    rows = content["rows"]
    for start in range(0, len(rows), len(RATIOS)):
        group = rows[start : start + len(RATIOS)]
        marks = [
            r["answer"] if r["answer"] == r["expected"] else f"[bold red]{r['answer'] or '(nothing)'}" for r in group
        ]
        table.add_row(group[0]["image"], group[0]["prompt"], group[0]["expected"], *marks)
    out.print(table)
    table = Table("R", "right", "as unpruned", "kept tokens", "TTFT", "decoder prefill", "KV cache")
    for row in content["summary"]:
        table.add_row(
            f"{row['ratio']:.0%}",
            f"{row['right']}/{row['questions']}",
            f"{row['same_as_unpruned']}/{row['questions']}",
            f"{row['kept_tokens']:.0f}",
            f"{1e3 * row['ttft_seconds']:.1f} ms",
            f"x {row['decoder_ratio']:.2f}",
            f"{mebibytes(row['kv_bytes'])} (x {row['kv_ratio']:.2f})",
        )
    out.print(table)
