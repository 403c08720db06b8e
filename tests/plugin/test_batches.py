"""A request does not end the engine for the others of its batch."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seer_sgl.plugin import batches

NO = -torch.inf


def test_a_row_without_any_token_may_draw_the_first_and_others_are_unchanged() -> None:
    logits = torch.tensor([[NO, NO, NO], [NO, 2.0, NO], [1.0, 0.0, NO]])
    assert batches.leave_a_token(logits, None, logits, None) is logits
    assert logits.tolist() == [[0.0, NO, NO], [NO, 2.0, NO], [1.0, 0.0, NO]]
    assert torch.softmax(logits, dim=-1)[0].tolist() == [1.0, 0.0, 0.0]
    nothing = torch.empty(0, 3)  # an idle rank
    assert batches.leave_a_token(nothing, None, nothing, sampling_info=None) is nothing


def test_no_masks_are_made_up_where_none_or_all_requests_have_some() -> None:
    masks: list[Any] = [object(), object()]
    for given in (None, [], masks):
        output: Any = SimpleNamespace(output_token_sampling_mask=given)
        batches.fill_masks(None, output)
        assert output.output_token_sampling_mask is given
    embeddings: Any = SimpleNamespace()
    batches.fill_masks(None, embeddings)


def test_a_request_without_masks_beside_one_with_some_gets_empty_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = SimpleNamespace(SamplingMaskRows=lambda: SimpleNamespace(take=lambda: "empty"))
    monkeypatch.setitem(sys.modules, "sglang.srt.sampling.sampling_mask", rows)
    output: Any = SimpleNamespace(output_token_sampling_mask=["masks", None])
    batches.fill_masks(None, output)
    assert output.output_token_sampling_mask == ["masks", "empty"]
