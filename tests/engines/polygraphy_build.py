"""Builds graphs with polygraphy on TensorRT-RTX, and prints the names of those that it builds. A program of its own.

Polygraphy decides once per process, as it is imported, which of the two libraries it drives.

Usage: python polygraphy_build.py PROFILES.json, {path of a graph: {input: [min, opt, max]}}
"""

import json
import os
import sys
from pathlib import Path

os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = "1"

from polygraphy.backend.tensorrt_rtx import CreateConfigRTX
from polygraphy.backend.trt import EngineBytesFromNetwork, NetworkFromOnnxPath, Profile

for path, shapes in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")).items():
    profile = Profile()
    for name, (least, best, most) in shapes.items():
        profile.add(name, min=least, opt=best, max=most)
    config = CreateConfigRTX(profiles=[profile], compute_capabilities=[(8, 6)])
    network = NetworkFromOnnxPath(path, strongly_typed=True)
    if len(bytes(EngineBytesFromNetwork(network, config=config)())) > 0:
        print(f"built {path}")
