"""The reasoner's prompts as a dataset of OpenRLHF.

    python prompts.py bench/reasoner/prompts/train.jsonl OUT.jsonl [--count 16] [--most-steps 20]

A line has `input` (the prompt, `<bos>` and `<think>` included: OpenRLHF adds no special tokens),
`label` (the answer) and `datasource`, which names the evaluation's metrics.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

DATASOURCE = "reasoner"


def rows(lines: Iterable[str], most_steps: int | None = None) -> Iterator[dict[str, str]]:
    """Yields OpenRLHF's rows of a prompts file's lines, in their order.

    `most_steps` leaves out prompts that need more subtractions: their responses are longer.
    """
    for line in lines:
        prompt = json.loads(line)
        facts = prompt["metadata"]
        if most_steps is None or facts["steps"] <= most_steps:
            yield {
                "input": prompt["prompt"],
                "label": str(facts["answer"]),
                "datasource": DATASOURCE,
            }


def write(source: Path, target: Path, count: int, most_steps: int | None = None) -> None:
    """Writes the first `count` rows; raises ValueError if the source has fewer."""
    with source.open() as lines:
        chosen = list(islice(rows(lines, most_steps), count))
    if len(chosen) < count:
        raise ValueError(f"{source} has {len(chosen)} such prompts, not {count}")
    target.write_text("".join(json.dumps(row) + "\n" for row in chosen))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="The reasoner's prompts as OpenRLHF's dataset.")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--most-steps", type=int)
    chosen = parser.parse_args()
    write(chosen.source, chosen.target, chosen.count, chosen.most_steps)


if __name__ == "__main__":
    main()
