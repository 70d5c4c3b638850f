"""Draw the sample pictures and their questions: the first dozen held-out scenes of one seed, none picked by hand.

python examples/tiny_llava/make_samples.py
"""

from __future__ import annotations

import json
from pathlib import Path

from task import Scenes, question

SEED = 2026
COUNT = 12


def main() -> None:
    folder = Path(__file__).parent / "samples"
    folder.mkdir(exist_ok=True)
    scenes = Scenes("held-out", seed=SEED)
    lines = []
    for index in range(COUNT):
        scene = scenes.draw()
        name = f"digits-{index + 1:02}.png"
        scene.image.save(folder / name)
        colour, digit = scene.colours[index % 3], scene.digits[index % 3]
        lines.append(json.dumps({"image": name, "prompt": question(colour), "answer": str(digit)}))
    (folder / "samples.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
