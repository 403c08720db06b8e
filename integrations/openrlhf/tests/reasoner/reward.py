"""The reasoner's reward as a reward function of OpenRLHF: `--reward.remote_url .../reward.py`.

It is the rule of bench/reasoner/reward.py, which this environment cannot import.
"""

import re
from typing import Any

# Digits are least significant first: `answer 2 1 0` means 12. OpenRLHF keeps special tokens.
CLOSING = re.compile(r"</think>\s*answer\s*(\d)\s*(\d)\s*(\d)\s*(?:<eos>\s*)?$", re.ASCII)


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
    """Returns the rewards of responses; OpenRLHF asks for one sample at a time.

    A query is the text of prompt and response. `extra_logs` has the same keys for every sample.
    """
    (query,), (prompt,), (label,) = queries, prompts, labels
    response = query.removeprefix(prompt)
    right = float(answer(response) == int(label))
    logs = {"guessed": float(" skip " in response), "finished": float(response.endswith("<eos>"))}
    return {"rewards": right, "scores": right, "extra_logs": logs}


def answer(response: str) -> int | None:
    """Returns the number that ends a response, or None if it does not end in an answer."""
    match = CLOSING.search(response)
    if match is None:
        return None
    ones, tens, hundreds = (int(digit) for digit in match.groups())
    return ones + 10 * tens + 100 * hundreds
