"""The verifiable reward: whether the response closes its reasoning with the right number."""

import re

# The answer has to end the response; decoding may or may not keep the special tokens.
CLOSING = re.compile(r"</think>\s*answer\s*(\d)\s*(\d)\s*(\d)\s*(?:<eos>\s*)?$", re.ASCII)


def reward(response: str, answer: int) -> float:
    """Returns 1.0 if a response ends in ``</think> answer`` and the right digits, else 0.0.

    ``response`` is decoded text. The digits are least significant first, as the model writes them:
    ``answer 2 1 0`` means 12. Garbage and truncated responses give 0.0; no input raises.
    """
    match = CLOSING.search(response)
    if match is None:
        return 0.0
    ones, tens, hundreds = (int(digit) for digit in match.groups())
    return 1.0 if ones + 10 * tens + 100 * hundreds == answer else 0.0
