"""Draw sample pictures and questions about held-out scans: the first scenes of one seed, none picked by hand.

python examples/tiny_llava/make_samples.py                                          # the dozen of the repository
python examples/tiny_llava/make_samples.py --count 400 --seed 11 --out samples-400    # a set to calibrate on
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from task import Scenes, question

SEED = 2026
COUNT = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=COUNT, help="pictures, one question each")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "samples")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    scenes = Scenes("held-out", seed=args.seed)
    digits = max(2, len(str(args.count)))
    lines = []
    for index in range(args.count):
        scene = scenes.draw()
        name = f"digits-{index + 1:0{digits}}.png"
        scene.image.save(args.out / name)
        colour, digit = scene.colours[index % 3], scene.digits[index % 3]
        lines.append(json.dumps({"image": name, "prompt": question(colour), "answer": str(digit)}))
    (args.out / "samples.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
