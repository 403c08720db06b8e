"""The text that a benchmark of random weights imposes on its engines: that of recorded siblings.

Random weights say noise, so no draft from a sibling is ever right. With imposed text each response
has the tokens of a recorded one, which the engine gives out after it has sampled (imposed.py).
Then as many drafts are accepted as with the recorded responses, in plain and drafting engines the
text is the same, and a step costs what it costs.

The recorded responses are the reasoner's (bench.draft_streams). A response of the workload that is
longer than the recorded one is continued with the sibling of the same index of the next group, so
at each place it has siblings that answer the same prompt.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.draft_streams import Siblings, Tokens
from seer_sgl.driver.groups import derived_seed

Lengths = Mapping[str, Sequence[int]]  # of the responses, by group id


class Text(NamedTuple):
    """The responses of a workload, by the seed that each request has (of n requests)."""

    seeds: NDArray[np.int64]  # [n], ascending
    prompts: NDArray[np.int64]  # [n]: tokens of the prompt
    begins: NDArray[np.int64]  # [n + 1]: where a response begins in `tokens`
    tokens: Tokens

    def save(self, path: Path) -> None:
        """Writes a file for `load`."""
        np.savez_compressed(path, **self._asdict())

    @classmethod
    def load(cls, path: Path) -> "Text":
        """Reads a file that `save` wrote. Raises OSError or ValueError."""
        with np.load(path) as file:
            return cls(*(file[name] for name in cls._fields))


def response(recorded: Sequence[Siblings], group: int, index: int, length: int) -> Tokens:
    """Returns `length` tokens: of the recorded group, then of those after it."""
    pieces: list[Tokens] = []
    while sum(map(len, pieces)) < length:
        siblings = recorded[(group + len(pieces)) % len(recorded)].responses
        pieces.append(siblings[index % len(siblings)])
    return np.concatenate(pieces)[:length]


def compose(
    recorded: Sequence[Siblings], lengths: Lengths, prompt_tokens: int, seeds: Sequence[int]
) -> Text:
    """Returns the text of a workload for rollouts with each of the `seeds` (`rollout.seed`)."""
    rows = sorted(
        (derived_seed(seed, index, group_id), number, index, length)
        for seed in seeds
        for number, (group_id, of_group) in enumerate(lengths.items())
        for index, length in enumerate(of_group)
    )
    tokens = [response(recorded, number, index, length) for _, number, index, length in rows]
    return Text(
        seeds=np.array([row[0] for row in rows], np.int64),
        prompts=np.full(len(rows), prompt_tokens, np.int64),
        begins=np.concatenate([[0], np.cumsum([len(one) for one in tokens])]).astype(np.int64),
        tokens=np.concatenate(tokens),
    )
