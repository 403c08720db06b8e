"""The verifiable reward: does the response close its reasoning and give the right number?"""

import re

# The answer has to be the last thing said; decoding may or may not keep the special tokens.
CLOSING = re.compile(r"</think>\s*answer\s*(\d)\s*(\d)\s*(\d)\s*(?:<eos>\s*)?$", re.ASCII)


def reward(response: str, answer: int) -> float:
    """1.0 for a response that ends in ``</think> answer`` and the right digits, else 0.0.

    ``response`` is decoded text. The digits are least significant first, as the model writes them:
    ``answer 2 1 0`` says 12. Garbage and truncated responses earn 0.0; nothing raises.
    """
    found = CLOSING.search(response)
    if found is None:
        return 0.0
    ones, tens, hundreds = (int(digit) for digit in found.groups())
    return 1.0 if ones + 10 * tens + 100 * hundreds == answer else 0.0
