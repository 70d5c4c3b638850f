"""Write select.json: cases of `select` and what it answers, which every implementation has to reproduce.

python -m tests.golden.make_select
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fastv_trt.errors import InputError
from fastv_trt.pruning import Pruning, select

PATH = Path(__file__).with_name("select.json")
RANKINGS = ("last-query", "received", "random", "uniform", "external")
RATIOS = (0.0, 0.1, 0.25, 1 / 3, 0.5, 0.6, 0.75, 0.9, 0.99, 1.0)


def case(name: str, pruning: dict[str, Any], length: int, positions: Any, sizes: Any, scores: Any = None) -> Any:
    """One case with its answer: `keep_indices`, or the text of the `error`."""
    made: dict[str, Any] = {"name": name, "pruning": pruning, "length": length}
    made |= {"positions": [int(p) for p in positions], "image_sizes": [int(s) for s in sizes]}
    values = None if scores is None else np.asarray(scores, np.float32)
    # JSON has no NaN: it is written as null.
    made["scores"] = None if values is None else [None if np.isnan(v) else float(v) for v in values]
    try:
        made["keep_indices"] = select(Pruning(**pruning), length, positions, sizes, values).tolist()
    except InputError as error:
        made["error"] = str(error)
    return made


def random_case(index: int, rng: np.random.Generator) -> Any:
    sizes = [int(s) for s in rng.integers(0, 14, rng.integers(0, 5))]
    tokens = sum(sizes)
    length = tokens + int(rng.integers(0 if tokens else 1, 12))
    positions = np.sort(rng.choice(length, tokens, replace=False))
    ranking = RANKINGS[index % len(RANKINGS)]
    pruning: dict[str, Any] = {"ranking": ranking, "scope": ("all", "image")[index // 5 % 2]}
    if index // 10 % 3 == 2:
        pruning["keep"] = int(rng.integers(0, tokens + 3))
    else:
        pruning["ratio"] = float(rng.choice(RATIOS)) if index % 2 else round(float(rng.random()), 3)
    if ranking == "random":
        pruning["seed"] = int(rng.integers(0, 2**63)) * 2 + index % 2
    # Few distinct values, so that most cases have ties; they are exact in float32.
    scores = rng.integers(-3, 6, tokens) / 8 if ranking not in ("random", "uniform") else None
    return case(f"random {index}", pruning, length, positions, sizes, scores)


def cases() -> list[Any]:
    rng = np.random.default_rng(7)
    made = [random_case(index, rng) for index in range(240)]
    four = ([1, 2, 3, 4], [4])
    for keep in range(6):
        made.append(case(f"all scores equal, keep {keep}", {"keep": keep}, 6, *four, [0.5] * 4))
        made.append(
            case(f"two images, keep {keep}", {"keep": keep, "scope": "image"}, 7, [0, 1, 3, 4, 5], [2, 3], range(5))
        )
    for ratio in (0.5, 0.25, 0.75):  # halves are rounded to the even number: 0.5 * 5 = 2.5 -> 2
        for tokens in (1, 2, 3, 5, 6, 7, 10):
            spots = list(range(tokens))
            made.append(case(f"round {tokens} at {ratio}", {"ratio": ratio}, tokens + 1, spots, [tokens], spots))
    zeros = [0.0, -0.0, 0.0, -0.0]
    made.append(case("minus zero ties with zero", {"keep": 2}, 6, *four, zeros))
    huge = [3.4e38, 1e30, -3.4e38, 3.3e38]
    made.append(case("very large scores", {"keep": 2}, 6, *four, huge))
    made.append(case("tiny differences count", {"keep": 1}, 6, *four, [1.0, 1.0000001, 1.0, 1.0]))
    made.append(case("no image tokens", {"ratio": 0.5}, 3, [], [], []))
    made.append(case("nothing but image tokens, none kept", {"keep": 0}, 4, [0, 1, 2, 3], [4], [1, 2, 3, 4]))
    made.append(case("largest seed", {"ratio": 0.5, "ranking": "random", "seed": 2**64 - 1}, 6, *four))
    nan = float("nan")
    made.append(case("NaN is refused", {"ratio": 0.5}, 6, *four, [1.0, nan, nan, 2.0]))
    made.append(case("missing scores", {"ratio": 0.5}, 6, *four))
    made.append(case("too few scores", {"ratio": 0.5}, 6, *four, [1.0]))
    made.append(case("sizes that do not sum", {"ratio": 0.5}, 6, [1, 2], [3], [1.0, 2.0]))
    made.append(case("ratio above 1", {"ratio": 1.5}, 6, *four, [0.0] * 4))
    made.append(case("a tiny negative ratio", {"ratio": -1e-7}, 6, *four, [0.0] * 4))
    made.append(case("ratio and keep", {"ratio": 0.5, "keep": 1}, 6, *four, [0.0] * 4))
    made.append(case("negative keep", {"keep": -1}, 6, *four, [0.0] * 4))
    made.append(case("unknown ranking", {"ratio": 0.5, "ranking": "it's best"}, 6, *four, [0.0] * 4))
    return made


def main() -> None:
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in cases())
    PATH.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
