"""A request does not end the engine for the others of its batch."""

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
