"""The text that a benchmark of random weights imposes: its responses, and the draws it replaces."""

from array import array
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bench.draft_streams import Siblings, recorded
from bench.gpu import imposed
from bench.gpu.text import Text, compose, response
from seer_sgl.driver.groups import GroupMaker
from seer_sgl.types import Prompt, Sampling

PROMPT = 5  # tokens
NOISE = 999
LENGTHS = {"a": [3, 1], "b": [4, 2]}
SIBLINGS = [
    Siblings(np.array([1], np.int32), [np.array(text, np.int32) for text in group])
    for group in ([[10, 11, 12, 13], [20, 21]], [[30, 31], [40, 41, 42]])
]


@pytest.fixture
def text() -> Text:
    return compose(SIBLINGS, LENGTHS, PROMPT, seeds=[1, 2])


def seeds(seed: int) -> dict[tuple[str, int], int]:
    """Returns the seeds that a rollout with `seed` sends with its requests."""
    maker = GroupMaker("run", seed)
    groups = [
        maker.group(
            Prompt(prompt_id=name, prompt_ids=array("i", [0] * PROMPT), n=2), Sampling(), 100, 0.0
        )
        for name in LENGTHS
    ]
    return {(one.group_id, each.index): each.seed for one in groups for each in one.requests}


def drawn(text: Text, seed: int, begin: int, count: int) -> list[int]:
    """Returns what an engine gives out at response tokens `begin` and after, all at once, as at the
    nodes of a draft."""
    positions = torch.arange(count) + PROMPT + begin - 1
    noise = torch.full((count,), NOISE, dtype=torch.int32)
    return imposed.Imposed(text).replace(noise, torch.full((count,), seed), positions).tolist()


def test_a_request_gets_its_response_and_behind_its_end_its_own_draws(text: Text) -> None:
    for seed in (1, 2):
        known = seeds(seed)
        assert drawn(text, known["a", 0], 0, 4) == [10, 11, 12, NOISE]
        assert drawn(text, known["a", 1], 0, 2) == [20, NOISE]
        assert drawn(text, known["b", 0], 2, 2) == [10, 11], "then the first group's"
        assert drawn(text, known["b", 1], 0, 3) == [40, 41, NOISE]


def test_requests_without_a_text_keep_their_draws(text: Text) -> None:
    every = [seed for rollout in (1, 2) for seed in seeds(rollout).values()]
    for seed in (0, min(every) - 1, max(every) + 1, seeds(3)["a", 0]):
        assert drawn(text, seed, 0, 2) == [NOISE, NOISE]
    assert drawn(text, every[0], -PROMPT, PROMPT) == [NOISE] * PROMPT, "not within the prompt"


def test_siblings_answer_the_same_prompt_at_each_place() -> None:
    groups = recorded()
    for index in range(len(groups[0].responses)):
        own = groups[3].responses[index]
        longer = response(groups, 3, index, len(own) + 10)
        assert np.array_equal(longer[: len(own)], own)
        assert np.array_equal(longer[len(own) :], groups[4].responses[index][:10])


def test_requests_without_seeds_keep_their_draws(text: Text) -> None:
    hook = imposed.Imposed(text).hook
    draws, positions = torch.tensor([NOISE]), torch.tensor([PROMPT - 1])
    for given, expected in ((torch.tensor([seeds(1)["b", 0]]), 30), (None, NOISE)):
        sampling = SimpleNamespace(sampling_seed=given)
        assert hook(draws, None, None, sampling, False, [], [], positions).item() == expected
