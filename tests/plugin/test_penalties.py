"""Penalties count every token, including the newest and those before a retraction.

SGLang's penalizers run in a process of their own, because the CPU engine's switches must be set
before SGLang is imported.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from seer_sgl.plugin import penalties

from .probe import run_probe

RESTORED = """
from types import SimpleNamespace
import torch
from seer_sgl.plugin import cpu
cpu.prepare()
from sglang.srt.sampling import penaltylib
from sglang.srt.sampling.sampling_params import SamplingParams
from seer_sgl.plugin import penalties

WANTED = [
    {"presence_penalty": 0.5, "frequency_penalty": 0.3, "min_new_tokens": 6},
    {"repetition_penalty": 1.3, "frequency_penalty": -0.2},
    {"presence_penalty": 1.0},  # not retracted
]
OUTPUTS = [[3, 4, 3, 9], [1, 1], [5]]

def orchestrator():
    batch.reqs = [
        SimpleNamespace(
            sampling_params=SamplingParams(**wanted),
            eos_token_ids={2},
            tokenizer=SimpleNamespace(additional_stop_token_ids=None, eos_token_id=2),
            output_ids=output,
            retracted_stain=row < 2,
        )
        for row, (wanted, output) in enumerate(zip(WANTED, OUTPUTS))
    ]
    kinds = (penaltylib.BatchedFrequencyPenalizer, penaltylib.BatchedMinNewTokensPenalizer,
             penaltylib.BatchedPresencePenalizer, penaltylib.BatchedRepetitionPenalizer)
    return penaltylib.BatchedPenalizerOrchestrator(16, batch, set(kinds))

class Batch:
    device = "cpu"

def penalized(penalizers):
    logits = torch.linspace(-2, 2, 16).repeat(3, 1)
    penalizers.apply(logits)
    return logits

batch = Batch()
restored = orchestrator()
info = SimpleNamespace(penalizer_orchestrator=restored, device="cpu")
assert penalties.remember_output(info, None, batch) is info
for row, output in enumerate([*OUTPUTS[:2], []]):
    one_by_one = orchestrator()
    for token in output:
        one_by_one.cumulate_output_tokens(torch.tensor([token] * 3))
    torch.testing.assert_close(penalized(restored)[row], penalized(one_by_one)[row])
untouched = orchestrator()
assert (penalized(restored)[0] != penalized(untouched)[0]).any()
"""


@pytest.mark.process
def test_a_retracted_request_is_penalized_for_what_it_had_written() -> None:
    run_probe("-c", RESTORED)


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
