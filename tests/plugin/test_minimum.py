"""`min_new_tokens` on an engine that drafts: by the position of a token, not by steps."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seer_sgl.plugin.speculation.minimum import Minimum, minimum_of, penalize

NO = -torch.inf
STOPS = torch.tensor([[0.0, NO, 0.0], [0.0, 0.0, NO]])


def batch(lengths: list[int], minimums: list[int]) -> Any:
    """Returns a batch whose requests have prompts of five tokens."""
    reqs = [
        SimpleNamespace(
            origin_input_ids=[0] * 5, sampling_params=SimpleNamespace(min_new_tokens=minimum)
        )
        for minimum in minimums
    ]
    info = SimpleNamespace(seer_stops=STOPS, acc_additive_penalties=None)
    return SimpleNamespace(reqs=reqs, seq_lens_cpu=torch.tensor(lengths), sampling_info=info)


def test_a_prefill_draws_the_first_token_of_a_response() -> None:
    minimum = minimum_of(batch([5, 5], [1, 0]), 0)
    assert minimum is not None
    assert minimum.penalties(torch.tensor([5, 5])).tolist() == [[0, NO, 0], [0, 0, 0]]


def test_a_retracted_request_counts_the_tokens_that_it_has_written() -> None:
    minimum = minimum_of(batch([5 + 3, 5 + 3], [3, 4]), 0)
    assert minimum is not None
    assert minimum.penalties(torch.tensor([8, 8])).tolist() == [[0, 0, 0], [0, 0, NO]]


def test_a_step_is_ordinary_once_all_requests_have_their_minimum() -> None:
    # A decoding step has KV for all tokens but the newest.
    assert minimum_of(batch([5 + 2, 5 + 6], [3, 7]), 1) is None
    assert minimum_of(batch([5 + 1, 5 + 6], [3, 7]), 1) is not None


def test_a_batch_without_a_minimum_is_not_looked_at() -> None:
    given: Any = SimpleNamespace(sampling_info=SimpleNamespace())
    assert minimum_of(given, 1) is None


@pytest.mark.parametrize("others", [None, torch.tensor([[0.5, 0.5, 0.5], [1.0, 1.0, 1.0]])])
def test_a_minimum_is_added_to_other_penalties(others: torch.Tensor | None) -> None:
    info: Any = SimpleNamespace(acc_additive_penalties=others)
    penalize(info, Minimum(torch.tensor([7, 8]), STOPS), torch.tensor([7, 7]))
    one, two = (0.0, 0.0) if others is None else (0.5, 1.0)
    assert info.acc_additive_penalties.tolist() == [[one] * 3, [two, two, NO]]
    before = info.acc_additive_penalties
    penalize(info, None, torch.tensor([0, 0]))
    assert info.acc_additive_penalties is before
