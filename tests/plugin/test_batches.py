"""A request does not end the engine for the others of its batch."""

import sys
from array import array
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seer_sgl.plugin import batches, sampling_masks

NO = -torch.inf


def test_a_row_without_any_token_may_draw_the_first_and_others_are_unchanged() -> None:
    info: Any = SimpleNamespace(penalizer_orchestrator=None, acc_additive_penalties=None)
    logits = torch.tensor([[NO, NO, NO], [NO, 2.0, NO], [1.0, 0.0, NO]])
    before = logits.clone()
    assert batches.leave_a_token(logits, None, logits, info) is logits
    assert torch.equal(logits, before)  # without a minimum length nothing is looked at
    info.penalizer_orchestrator = SimpleNamespace(is_required=True)
    assert batches.leave_a_token(logits, None, logits, info) is logits
    assert logits.tolist() == [[0.0, NO, NO], [NO, 2.0, NO], [1.0, 0.0, NO]]
    assert torch.softmax(logits, dim=-1)[0].tolist() == [1.0, 0.0, 0.0]
    nothing = torch.empty(0, 3)  # an idle rank
    assert batches.leave_a_token(nothing, None, nothing, sampling_info=info) is nothing


def test_no_masks_are_made_up_where_none_or_all_requests_have_some() -> None:
    masks: list[Any] = [object(), object()]
    for given in (None, [], masks):
        output: Any = SimpleNamespace(output_token_sampling_mask=given)
        sampling_masks.fill_masks(None, output)
        assert output.output_token_sampling_mask is given
    embeddings: Any = SimpleNamespace()
    sampling_masks.fill_masks(None, embeddings)


def test_a_request_without_masks_beside_one_with_some_gets_empty_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = SimpleNamespace(SamplingMaskRows=lambda: SimpleNamespace(take=lambda: "empty"))
    monkeypatch.setitem(sys.modules, "sglang.srt.sampling.sampling_mask", rows)
    output: Any = SimpleNamespace(output_token_sampling_mask=["masks", None])
    sampling_masks.fill_masks(None, output)
    assert output.output_token_sampling_mask == ["masks", "empty"]


@pytest.mark.parametrize("first", [None, [[0.5]]])
def test_prompts_of_embeddings_and_of_tokens_are_prefilled_apart(
    first: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = SimpleNamespace(AddReqResult=SimpleNamespace(OTHER="other"))
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.schedule_policy", policy)
    adder: Any = SimpleNamespace(can_run_list=[])

    def add(given: Any, req: Any, *, has_chunked_req: bool) -> str:
        assert given is adder
        assert not has_chunked_req
        adder.can_run_list.append(req)
        return "added"

    kinds = [first, first, [[0.5]] if first is None else None, first]
    reqs: list[Any] = [SimpleNamespace(input_embeds=embeds) for embeds in kinds]
    said = [batches.keep_embeds_apart(add, adder, req, has_chunked_req=False) for req in reqs]
    assert said == ["added", "added", "other", "added"]
    assert adder.can_run_list == [reqs[0], reqs[1], reqs[3]]


@pytest.mark.parametrize(
    ("embeds", "dtype", "why"),
    [
        (None, torch.float32, None),
        ([[0.5, 1.0], [0.0, 0.5]], torch.bfloat16, None),
        ([[0.5, 1.0], [0.0]], torch.bfloat16, "must have 2 values each"),
        ([[0.5, 1.0, 0.5]], torch.bfloat16, "must have 2 values each"),
        ([[0.5, 1.0]], torch.float32, "the model has float32"),
    ],
)
def test_embeddings_that_the_model_cannot_read_are_refused(
    embeds: Any, dtype: torch.dtype, why: str | None
) -> None:
    manager: Any = SimpleNamespace(model_config=SimpleNamespace(dtype=dtype, hidden_size=2))
    request: Any = SimpleNamespace(input_embeds=embeds)
    if why is None:
        batches.check_embeds(manager, request, [1, 2])
        return
    with pytest.raises(ValueError, match=f"^input_embeds: .*{why}"):
        batches.check_embeds(manager, request, [1, 2])


@pytest.mark.parametrize("refused", [False, True])
def test_a_turn_that_its_session_refuses_has_no_images(refused: bool) -> None:
    released: list[bool] = []
    images: Any = SimpleNamespace(release_features=lambda: released.append(True))
    req: Any = SimpleNamespace(
        to_finish=object() if refused else None, origin_input_ids=array("q", [1 << 30])
    )
    extended: list[Any] = []
    batches.forget_images(lambda *given: extended.append(given), req, images)
    assert extended == ([] if refused else [(req, images)])
    assert released == [True] * refused
    assert req.origin_input_ids.tolist() == [0 if refused else 1 << 30]
