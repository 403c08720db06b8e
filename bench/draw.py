"""Draws the pictures of the documentation.

`python -m bench.draw [--out bench/pictures]` writes each as SVG and PNG:

- `architecture`: the processes, and what flows between them.
- `chunk`: the eight steps of a chunk, from prompt to sample.
- `waterfall`: throughput over pinned groups, technique by technique, beside the paper's.
- `gain`: what seer-sgl gains, by how long pinned engines idle, a dot per seed.
- `what-if`: the picture of `seer-sgl what-if` on lengths of a published rollout.
- `learning`: right answers and response lengths of the trainings with OpenRLHF, step by step.
"""

import argparse
from pathlib import Path

import msgspec

from bench.draw_diagrams import draw_architecture, draw_chunk
from bench.draw_learning import draw_learning, read_trainings
from bench.draw_results import draw_gain, draw_waterfall
from bench.gains import ARMS_REPORT, RESULTS, SEEDS_REPORTS, read_rounds
from bench.what_if import FOLDER
from seer_sgl.what_if.answer import WhatIfAnswer
from seer_sgl.what_if.picture import draw as draw_answer

PICTURES = Path(__file__).parent / "pictures"
LEARNING = RESULTS / "2026-11-23-cpu-rl"
ANSWER = FOLDER / "qwen2-vl-72b.json"


def draw_all(out: Path) -> list[Path]:
    """Write all pictures into a folder and return their paths."""
    out.mkdir(parents=True, exist_ok=True)
    return [
        *draw_architecture(out / "architecture"),
        *draw_chunk(out / "chunk"),
        *draw_waterfall(read_rounds(ARMS_REPORT), out / "waterfall"),
        *draw_gain(read_rounds(*SEEDS_REPORTS), out / "gain"),
        *draw_learning(read_trainings(LEARNING), out / "learning"),
        *draw_answer(msgspec.json.decode(ANSWER.read_bytes(), type=WhatIfAnswer), out / "what-if"),
    ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Draw the pictures of the documentation.")
    parser.add_argument("--out", type=Path, default=PICTURES, help="folder of the pictures")
    for path in draw_all(parser.parse_args().out):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
