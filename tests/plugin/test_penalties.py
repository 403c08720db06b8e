"""Penalties count every token, including the newest and those before a retraction."""

from types import SimpleNamespace
from typing import Any

import pytest

from seer_sgl.plugin import penalties

from .probe import run_probe

PROBE = """
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

VOCAB = 16
KINDS = {penaltylib.BatchedFrequencyPenalizer, penaltylib.BatchedMinNewTokensPenalizer,
         penaltylib.BatchedPresencePenalizer, penaltylib.BatchedRepetitionPenalizer}

class Batch:
    device = "cpu"

batch = Batch()

def orchestrator(wanted, outputs=((), (), ())):
    batch.reqs = [
        SimpleNamespace(
            sampling_params=SamplingParams(**each),
            eos_token_ids={2},
            tokenizer=SimpleNamespace(additional_stop_token_ids=None, eos_token_id=2),
            output_ids=output,
            retracted_stain=row < 2,
        )
        for row, (each, output) in enumerate(zip(wanted, outputs))
    ]
    return penaltylib.BatchedPenalizerOrchestrator(VOCAB, batch, KINDS)

# A retracted request is penalized for what it had written.
WANTED = [
    {"presence_penalty": 0.5, "frequency_penalty": 0.3, "min_new_tokens": 6},
    {"repetition_penalty": 1.3, "frequency_penalty": -0.2},
    {"presence_penalty": 1.0},  # not retracted
]
OUTPUTS = [[3, 4, 3, 9], [1, 1], [5]]

def penalized(penalizers):
    logits = torch.linspace(-2, 2, VOCAB).repeat(3, 1)
    penalizers.apply(logits)
    return logits

restored = orchestrator(WANTED, OUTPUTS)
info = SimpleNamespace(penalizer_orchestrator=restored, device="cpu")
assert penalties.remember_output(info, None, batch) is info
for row, output in enumerate([*OUTPUTS[:2], []]):
    one_by_one = orchestrator(WANTED)
    for token in output:
        one_by_one.cumulate_output_tokens(torch.tensor([token] * 3))
    torch.testing.assert_close(penalized(restored)[row], penalized(one_by_one)[row])
assert (penalized(restored)[0] != penalized(orchestrator(WANTED))[0]).any()

# A drafting engine has no penalty for the minimum alone.
def penalties_of(algorithm, *wanted):
    runtime_context.get_spec = lambda: SimpleNamespace(speculative_algorithm=algorithm)
    minimal = orchestrator(wanted)
    before = dict(minimal.penalizers), minimal.is_required
    info = SamplingBatchInfo(
        temperatures=torch.ones(len(wanted), 1), top_ps=None, top_ks=None, min_ps=None,
        is_all_greedy=False, is_any_greedy=False, need_top_p_sampling=False,
        need_top_k_sampling=False, need_min_p_sampling=False, vocab_size=VOCAB,
        penalizer_orchestrator=minimal, device="cpu",
    )
    copy = penalties.without_minimum(SamplingBatchInfo.copy_for_forward, info)
    assert (minimal.penalizers, minimal.is_required) == before
    added, stops = copy.acc_additive_penalties, getattr(copy, "seer_stops", None)
    return [None if each is None else each.tolist() for each in (added, stops)]

zero, stops = [0.0] * VOCAB, [-float("inf") if word == 2 else 0.0 for word in range(VOCAB)]
minimum, plain, bias = {"min_new_tokens": 9}, {}, {"presence_penalty": 1.0}
assert penalties_of(ALGORITHM, minimum, plain) == [None, [stops, stops]]
assert penalties_of(ALGORITHM, minimum, bias) == [[zero, zero], [stops, stops]]
assert penalties_of(ALGORITHM, plain, bias) == [[zero, zero], None]
assert penalties_of(ALGORITHM, plain) == [None, None]
assert penalties_of(None, minimum, plain) == [[stops, zero], None]
"""


@pytest.mark.process
def test_sglangs_penalizers_count_what_was_written_and_no_minimum_where_drafts_are() -> None:
    run_probe("-c", PROBE)


class BatchedPresencePenalizer:
    """The members of SGLang's penalizer that the hooks read."""

    def __init__(self, *, prepared: bool) -> None:
        self.is_prepared = lambda: prepared


class BatchedMinNewTokensPenalizer(BatchedPresencePenalizer):
    """Counts tokens, independent of their ids."""


class Queued(SimpleNamespace):
    """The last step and its result, whose tokens are on the host once they are waited for."""

    def __init__(self, reqs: list[Any], tokens: list[int]) -> None:
        ids = SimpleNamespace(tolist=lambda: tokens if self.waited else [0] * len(tokens))
        done = SimpleNamespace(synchronize=lambda: setattr(self, "waited", True))
        result = SimpleNamespace(copy_done=done, next_token_ids=ids)
        super().__init__(waited=False, pair=(SimpleNamespace(reqs=reqs), result))


@pytest.mark.parametrize("by_token", [True, False])
@pytest.mark.parametrize("stride", [1, 5])
@pytest.mark.parametrize("booked", [False, True])
def test_the_newest_tokens_are_counted_once_and_before_sglang_books_them(
    by_token: bool, stride: int, booked: bool
) -> None:
    # SGLang processes the last step's result behind this one. Otherwise a request that ends would
    # be cached, and its KV copied, before this step computes the KV of its newest token.
    first, second = SimpleNamespace(output_ids=[3, 4]), SimpleNamespace(output_ids=[])
    queued = Queued([first, second], [7, *[0] * (stride - 1), 8, *[0] * (stride - 1)])
    queue = [] if booked else [Queued([], []).pair, queued.pair]
    counted: list[Any] = []
    penalizers = {
        BatchedPresencePenalizer: BatchedPresencePenalizer(prepared=by_token),
        BatchedMinNewTokensPenalizer: BatchedMinNewTokensPenalizer(prepared=True),
    }
    orchestrator = SimpleNamespace(penalizers=penalizers)
    given: Any = SimpleNamespace(
        sampling_info=SimpleNamespace(penalizer_orchestrator=orchestrator),
        seer_count=lambda _: counted.append([[*req.output_ids] for req in (first, second)]),
    )
    scheduler: Any = SimpleNamespace(result_queue=queue)
    penalties.count_now(scheduler, given)
    penalties.count_now(scheduler, given)
    late = by_token and not booked
    assert counted == [[[3, 4, 7], [8]] if late else [[3, 4], []]]
    assert (first.output_ids, second.output_ids) == ([3, 4], [])
    assert queued.waited is late
