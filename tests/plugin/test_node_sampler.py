"""Sampling in parts is sampling: the same draws and logprobs, in SGLang's shapes."""

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seer_sgl.plugin.speculation import node_sampler
from seer_sgl.plugin.speculation.minimum import Minimum
from seer_sgl.plugin.speculation.node_sampler import ASKED_LOGPROBS, NodeSampler

COUNT, WIDTH, WORDS = 5, 3, 7


@dataclasses.dataclass
class Logits:
    """The fields of LogitsProcessorOutput that a sampler writes."""

    next_token_logits: torch.Tensor
    next_token_logprobs: Any = None
    next_token_top_logprobs_val: Any = None
    next_token_top_logprobs_idx: Any = None
    next_token_token_ids_logprobs_val: Any = None
    next_token_token_ids_logprobs_idx: Any = None


@dataclasses.dataclass
class Sampling:
    """The fields of SamplingBatchInfo that are used."""

    temperatures: torch.Tensor
    logit_bias: torch.Tensor | None
    grammars: Any = None
    grammar_mask: Any = None
    has_custom_logit_processor: bool = False
    acc_additive_penalties: torch.Tensor | None = None
    acc_scaling_penalties: torch.Tensor | None = None
    sampling_mask_batch_indices: Any = None
    top_ps: Any = None
    top_ks: Any = None
    min_ps: Any = None
    sampling_seed: Any = None

    def update_regex_vocab_mask(self) -> None:
        self.grammar_mask = "for this step"

    def apply_logits_bias(self, logits: torch.Tensor) -> None:
        assert self.grammar_mask == "for this step"
        assert self.acc_additive_penalties is not None
        logits.add_(self.acc_additive_penalties)


class Sampler:
    """Draws the likeliest word, shifted by the position. calls: nodes of each call."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(  # noqa: PLR0917 (SGLang's signature)
        self,
        output: Logits,
        sampling: Sampling,
        return_logprob: bool,
        top_nums: list[int],
        token_ids: list[list[int] | None],
        positions: torch.Tensor,
    ) -> torch.Tensor:
        nodes = len(positions)
        self.calls.append(nodes)
        assert len(top_nums) == len(token_ids) == len(sampling.temperatures) == nodes
        logits = output.next_token_logits.div_(sampling.temperatures)
        output.next_token_logprobs = logits.log_softmax(-1).max(-1).values
        if any(top_nums):  # as sglang.srt.layers.logprob_processor.OutputLogprobProcessor
            values, indices = logits.topk(max(top_nums), dim=-1)
            output.next_token_top_logprobs_val = [
                row[:top] for row, top in zip(values, top_nums, strict=True)
            ]
            output.next_token_top_logprobs_idx = [
                row[:top] for row, top in zip(indices, top_nums, strict=True)
            ]
        if any(ids is not None for ids in token_ids):
            output.next_token_token_ids_logprobs_val = [
                row.new_empty(0) if ids is None else row[ids]
                for row, ids in zip(logits, token_ids, strict=True)
            ]
            output.next_token_token_ids_logprobs_idx = [ids or [] for ids in token_ids]
        return logits.argmax(-1) + positions


def batch(
    sampling: Sampling,
    top_nums: Sequence[int] = (0,) * COUNT,
    token_ids: Sequence[list[int] | None] = (None,) * COUNT,
) -> Any:
    """Returns a batch of COUNT requests that want logprobs."""
    return SimpleNamespace(
        sampling_info=sampling,
        return_logprob=True,
        top_logprobs_nums=list(top_nums),
        token_ids_logprobs=list(token_ids),
    )


def runner(sampler: Sampler) -> Any:
    return SimpleNamespace(sampler=sampler)


@pytest.mark.parametrize("bias", [None, torch.arange(COUNT * WORDS).view(COUNT, WORDS) / 10])
@pytest.mark.parametrize(("requests", "calls"), [(4, [12, 3]), (2, [6, 6, 3]), (0, [3] * 5)])
@pytest.mark.parametrize(
    ("top_nums", "token_ids"),
    [
        ([0, 1, 2, 3, 4], [[0], [1, 2], [3], [4], [5]]),
        ([2, 0, 0, 0, 0], [None, None, None, None, [5, 1]]),  # only the first, only the last
        ([0, 0, 0, 0, 3], [[6], None, None, None, None]),
        ([0] * COUNT, [None] * COUNT),
    ],
)
def test_parts_give_the_draws_and_logprobs_of_the_whole(  # noqa: PLR0917
    monkeypatch: pytest.MonkeyPatch,
    requests: int,
    calls: list[int],
    bias: torch.Tensor | None,
    top_nums: list[int],
    token_ids: list[list[int] | None],
) -> None:
    logits = torch.rand((COUNT * WIDTH, WORDS), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(COUNT * WIDTH)
    given = None if bias is None else bias.repeat_interleave(WIDTH, 0)

    def drawn(sampler: Sampler, most_bytes: int) -> tuple[list[int], Logits]:
        monkeypatch.setattr(node_sampler, "MOST_BYTES", most_bytes)
        sampling = Sampling(torch.arange(1.0, COUNT + 1)[:, None], bias)
        output = Logits(logits.clone())
        part = NodeSampler(runner(sampler), batch(sampling, top_nums, token_ids), WIDTH, None)
        return part.draw(output, positions).tolist(), output

    whole, in_parts = Sampler(), Sampler()
    request_bytes = node_sampler.WORD_BYTES * WIDTH * WORDS
    expected, once = drawn(whole, COUNT * request_bytes)
    draws, parts = drawn(in_parts, requests * request_bytes)
    assert whole.calls == [COUNT * WIDTH]
    assert in_parts.calls == calls
    assert draws == expected
    biased = logits if given is None else logits + given
    assert expected == (biased.argmax(-1) + positions).tolist()
    assert torch.equal(parts.next_token_logprobs, once.next_token_logprobs)
    for name in ASKED_LOGPROBS:
        assert str(getattr(parts, name)) == str(getattr(once, name))


@pytest.mark.parametrize("most_bytes", [1, 1 << 30])
def test_a_node_draws_no_stop_token_before_its_own_request_has_its_minimum(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    monkeypatch.setattr(node_sampler, "MOST_BYTES", most_bytes)
    stops = torch.zeros(COUNT, WORDS)
    stops[:4, 6] = -torch.inf  # the last request has no stop token
    minimum = Minimum(torch.tensor([0, 11, 12, 99, 99]), stops)
    free = batch(Sampling(torch.ones(COUNT, 1), None))
    # The likeliest word is 6, the next one is 5. The sampler adds the position.
    output = Logits(torch.arange(float(WORDS)).repeat(COUNT * WIDTH, 1))
    positions = torch.tensor([9, 10, 10]).repeat(COUNT)  # a root and its two children
    drawing = NodeSampler(runner(Sampler()), free, WIDTH, minimum)
    draws = drawing.draw(output, positions) - positions
    # Tokens for positions 10, 11 and 11.
    assert draws.view(COUNT, WIDTH).tolist() == [
        [6, 6, 6],
        [5, 6, 6],
        [5, 5, 5],
        [5, 5, 5],
        [6, 6, 6],
    ]
    assert torch.isfinite(output.next_token_logprobs).all()


def test_penalties_and_a_minimum_count_in_a_verification_without_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_sampler, "MOST_BYTES", 1)  # penalties are not cut into parts
    penalties = torch.zeros(COUNT, WORDS)
    penalties[:, 2] = 5.0
    stops = torch.zeros(COUNT, WORDS)
    stops[:, 2] = -torch.inf
    minimum = Minimum(torch.tensor([0, 0, 4, 4, 5]), stops)
    sampling = Sampling(torch.ones(COUNT, 1), None, acc_additive_penalties=penalties)
    sampler, output, positions = Sampler(), Logits(torch.zeros(COUNT, WORDS)), torch.arange(COUNT)
    drawing = NodeSampler(runner(sampler), batch(sampling), 1, minimum)
    draws = drawing.draw(output, positions) - positions
    assert draws.tolist() == [2, 2, 0, 2, 2]
    assert sampler.calls == [COUNT]
    assert sampling.grammar_mask is None, "its memory is not needed any more"
