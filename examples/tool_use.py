"""Trajectories of several turns: the model subtracts with a calculator.

    python -m examples.tool_use [--prompts 8]

The model computes greatest common divisors in words, by subtracting. Whenever it has written
`from A take B :`, `A - B =` or `A less B is`, the calculator writes the difference, and the model
continues behind it.
"""

import argparse
import asyncio
import re
import statistics

from bench.reasoner.reward import reward
from seer_sgl import Client, Prompt, Rollout, load_ready

STOPS = [":", "=", "is"]
# The least digit comes first.
SUBTRACTION = re.compile(r"(\d) (\d) (\d) (?:take|-|less) (\d) (\d) (\d) $")
MOST_TOKENS = 1500  # of a trajectory


async def calculating(prompt: Prompt, client: Client) -> tuple[float, int]:
    """Rolls one trajectory out. Returns its reward and how often it used the calculator."""
    ids, text, calls = list(prompt.prompt_ids), "", 0
    longest = len(ids) + MOST_TOKENS
    while len(ids) < longest:
        turn = await client.generate(ids, stop=STOPS, max_new_tokens=longest - len(ids))
        ids += turn.response_ids
        text += turn.text or ""
        if turn.matched not in STOPS:
            break
        found = SUBTRACTION.search(text)
        text += turn.matched
        if found is not None:
            result = difference(*found.groups())
            ids += client.encode(result)
            text += result
            calls += 1
    return reward(text, prompt.metadata["answer"]), calls


def difference(*digits: str) -> str:
    """Returns the difference of two numbers of three digits as the model writes it."""
    one, other = (int("".join(reversed(part))) for part in (digits[:3], digits[3:]))
    return " " + " ".join(reversed(f"{abs(one - other):03}"))


async def main(prompts: int) -> None:
    """Rolls some prompts out, and prints a line for each."""
    async with Rollout(load_ready("cpu-seer", [f"rollout.max_prompts={prompts}"])) as rollout:
        questions = rollout.read_prompts(rollout.config.rollout.prompts or "")
        async for prompt, results in rollout.trajectories(calculating, questions):
            rewards, calls = zip(*results, strict=True)
            print(f"{prompt.prompt_id}: reward {statistics.mean(rewards):.2f}, {sum(calls)} calls")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=8)
    asyncio.run(main(parser.parse_args().prompts))
