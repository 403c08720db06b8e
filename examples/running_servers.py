"""A rollout on SGLang servers that already run, with or without the plugin.

    python -m sglang.launch_server --model-path M --port 30000   # or: seer-sgl engine ...
    python -m examples.running_servers http://127.0.0.1:30000 [URL ...] --tokenizer M [--prompts P]

Prints each group when it completes. The servers continue afterwards. P is a JSONL file of prompts.
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from seer_sgl import Rollout

QUESTIONS = ("What is 12 + 30?", "Name three prime numbers.", "Why is the sky blue?")


async def main(urls: Sequence[str], tokenizer: str, file: Path | None) -> None:
    """Samples four responses per prompt on the servers and prints how long they are."""
    config = {
        "model": {"path": tokenizer},
        "engines": {"launch": "external", "urls": list(urls)},
        "sampling": {"temperature": 0.8, "max_response_len": 256},
        "rollout": {"n_samples_per_prompt": 4, "max_prompts": 3, "seed": 1},
    }
    async with Rollout(config) as rollout:
        prompts = QUESTIONS if file is None else rollout.read_prompts(file)
        async for group in rollout.run(prompts):
            lengths = [sample.response_length for sample in group.samples]
            engines = sorted({name for sample in group.samples for name in sample.engines})
            print(f"{group.group_id}: {lengths} tokens on {', '.join(engines)}", flush=True)
        report = rollout.report()
    print(f"{report['samples']} samples, {report['throughput_tok_s']:.0f} tok/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("urls", nargs="+")
    parser.add_argument("--tokenizer", required=True, help="model folder or hub id")
    parser.add_argument("--prompts", type=Path)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.urls, arguments.tokenizer, arguments.prompts))
