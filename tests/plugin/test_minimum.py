"""`min_new_tokens` on an engine that drafts: by the position of a token, not by steps."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seer_sgl.plugin.speculation.minimum import Minimum, minimum_of, penalize

from .probe import run_probe

NO = -torch.inf
STOPS = torch.tensor([[0.0, NO, 0.0], [0.0, 0.0, NO]])
ALONE = """
from types import SimpleNamespace
import torch
from seer_sgl.link.contract import ALGORITHM
from seer_sgl.plugin import cpu
cpu.prepare()
from sglang.srt import runtime_context
from sglang.srt.sampling import penaltylib
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import SamplingParams
from seer_sgl.plugin import penalties

class Batch:
    device = "cpu"

batch = Batch()
KINDS = (penaltylib.BatchedFrequencyPenalizer, penaltylib.BatchedMinNewTokensPenalizer,
         penaltylib.BatchedPresencePenalizer, penaltylib.BatchedRepetitionPenalizer)

def penalties_of(algorithm, *wanted):
    runtime_context.get_spec = lambda: SimpleNamespace(speculative_algorithm=algorithm)
    batch.reqs = [
        SimpleNamespace(
            sampling_params=SamplingParams(**each),
            eos_token_ids={2},
            tokenizer=SimpleNamespace(additional_stop_token_ids=None, eos_token_id=2),
        )
        for each in wanted
    ]
    orchestrator = penaltylib.BatchedPenalizerOrchestrator(4, batch, set(KINDS))
    before = dict(orchestrator.penalizers), orchestrator.is_required
    count = len(wanted)
    info = SamplingBatchInfo(
        temperatures=torch.ones(count, 1), top_ps=None, top_ks=None, min_ps=None,
        is_all_greedy=False, is_any_greedy=False, need_top_p_sampling=False,
        need_top_k_sampling=False, need_min_p_sampling=False, vocab_size=4,
        penalizer_orchestrator=orchestrator, device="cpu",
    )
    copy = penalties.without_minimum(SamplingBatchInfo.copy_for_forward, info)
    assert (orchestrator.penalizers, orchestrator.is_required) == before
    added, stops = copy.acc_additive_penalties, getattr(copy, "seer_stops", None)
    return [None if each is None else each.tolist() for each in (added, stops)]

inf, zero = float("inf"), [0.0, 0.0, 0.0, 0.0]
minimum, plain, bias = {"min_new_tokens": 9}, {}, {"presence_penalty": 1.0}
stops = [0.0, 0.0, -inf, 0.0]
assert penalties_of(ALGORITHM, minimum, plain) == [None, [stops, stops]]
assert penalties_of(ALGORITHM, minimum, bias) == [[zero, zero], [stops, stops]]
assert penalties_of(ALGORITHM, plain, bias) == [[zero, zero], None]
assert penalties_of(ALGORITHM, plain) == [None, None]
assert penalties_of(None, minimum, plain) == [[stops, zero], None]
"""


@pytest.mark.process
def test_a_drafting_engine_has_no_penalty_for_the_minimum_alone() -> None:
    run_probe("-c", ALONE)


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
