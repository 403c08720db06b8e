"""Penalties count every token, including the newest and those before a retraction.

SGLang's penalizers run in a process of their own, because the CPU engine's switches must be set
before SGLang is imported.
"""

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


def batch(*, by_token: bool = True, decodes: bool = True) -> Any:
    penalizers = {
        BatchedPresencePenalizer: BatchedPresencePenalizer(prepared=by_token),
        BatchedMinNewTokensPenalizer: BatchedMinNewTokensPenalizer(prepared=True),
    }
    return SimpleNamespace(
        forward_mode=SimpleNamespace(is_decode=lambda: decodes),
        sampling_info=SimpleNamespace(
            penalizer_orchestrator=SimpleNamespace(penalizers=penalizers)
        ),
    )


@pytest.mark.parametrize(
    ("wanted", "queue", "given"),
    [
        (True, ["a result"], batch()),
        (False, [], batch()),
        (False, ["a result"], batch(by_token=False)),
        (False, ["a result"], batch(decodes=False)),
        (False, ["a result"], None),
    ],
)
def test_a_step_waits_for_the_last_token_only_if_a_penalty_depends_on_it(
    wanted: bool, queue: list[str], given: Any
) -> None:
    scheduler = SimpleNamespace(result_queue=queue)
    assert penalties.newest_token_first(False, scheduler, given, last_batch=None) is wanted
    assert penalties.newest_token_first(True, scheduler, given, last_batch=None) is True


def test_a_token_is_counted_once_and_when_the_step_runs() -> None:
    counted: list[Any] = []
    given = SimpleNamespace(seer_count=counted.append)
    penalties.count_now(None, given)
    penalties.count_now(None, given)
    assert counted == [given]
