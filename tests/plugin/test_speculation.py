"""The parts of the speculative worker that need no server.

These are the tokens for the index, the ranks' agreement, the attention mask, and the CPU's
stand-ins for SGLang's operators.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from typing_extensions import override

from seer_sgl.draft.drafter import Drafter
from seer_sgl.draft.replica import Replica
from seer_sgl.plugin.cpu import speculative_kernels as kernels
from seer_sgl.plugin.speculation import ranks
from seer_sgl.plugin.speculation.planner import PLAIN, StepPlan
from seer_sgl.plugin.speculation.rows import BatchRows, origin_of
from tests.draft.indexes import length
from tests.draft.trees import as_drafts
from tests.plugin.requests import request


class Engine:
    """Rows over a real index; `step` passes them the tokens of a decode step."""

    def __init__(self) -> None:
        self.drafter = Drafter()
        replica = Replica(self.drafter, None, max_tokens=1000, scope="engine")
        self.rows = BatchRows(self.drafter, replica)

    def step(self, reqs: list[Any], totals: list[int], runs: list[list[int]]) -> list[int]:
        """Returns the tokens that reach the index. runs: the last step's tokens per row."""
        lens = np.array([len(run) for run in runs])
        padded = np.zeros((len(runs), 9), np.int32)
        for i, run in enumerate(runs):
            padded[i, : len(run)] = run
        self.rows.follow(reqs)
        tokens, counts = self.rows.missing(reqs, np.array(totals), padded, lens)
        self.drafter.step(self.rows.slots, tokens, counts, np.zeros(len(reqs), np.int32), 1)
        self.rows.share(tokens, counts)
        return list(tokens.tolist())


def test_with_overlap_the_last_steps_tokens_are_not_booked_yet_and_without_they_are() -> None:
    for booked in (False, True):
        engine, req = Engine(), request("a", [7] if booked else [])
        first = engine.step([req], [4], [[7]])
        assert first == ([] if booked else [7])
        req.output_ids += [8, 9]
        assert engine.step([req], [6], [[8, 9]]) == [8, 9]
        assert length(engine.drafter, "g", 0) == 3


class Text(list[int]):
    """A text that counts the tokens that are read."""

    read = 0

    @override
    def __iter__(self) -> Iterator[int]:
        self.read += len(self)
        return super().__iter__()

    @override
    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        self.read += len(part) if isinstance(part, list) else 1
        return part


def test_steps_without_drafting_are_made_up_for_and_nothing_else_is_read() -> None:
    engine, req = Engine(), request("a", list(range(500)))
    req.origin_input_ids, req.output_ids = Text(req.origin_input_ids), Text(req.output_ids)
    engine.step([req], [503], [[499]])
    req.output_ids += [8, 9, 10]  # two skipped steps, and the last one
    req.origin_input_ids.read = req.output_ids.read = 0
    assert engine.step([req], [506], [[10]]) == [8, 9, 10]
    assert req.origin_input_ids.read + req.output_ids.read == 3
    req.output_ids += [12, 13]
    assert engine.step([req], [509], [[14]]) == [12, 13, 14], "the last token is not booked yet"


def test_tokens_that_were_taken_back_start_the_row_again() -> None:
    engine, req = Engine(), request("a", [7, 8, 9])
    engine.step([req], [6], [[9]])
    req.output_ids = [7, 5]
    assert engine.step([req], [5], [[5]]) == []
    assert length(engine.drafter, "g", 1) == 2, "the written tokens stay; the row forks"


def test_rows_come_and_go_with_the_batch() -> None:
    engine = Engine()
    a, b = request("a", [7]), request("b", [8], sample=1)
    engine.step([a, b], [4, 4], [[7], [8]])
    assert engine.rows.limits.tolist() == [53, 53]
    slots = engine.rows.slots.tolist()
    b.output_ids += [9]
    assert engine.step([b], [5], [[9]]) == [9]
    assert engine.rows.slots.tolist() == slots[1:]
    engine.rows.leave("b")
    assert not engine.rows.slots.size
    again = request("a", [7, 8])
    engine.step([again], [5], [[8]])
    assert length(engine.drafter, "g", 0) == 2, "the same sequence continues"


def test_the_last_tokens_of_a_request_reach_the_index_and_none_after_its_stop() -> None:
    engine = Engine()
    a, b = request("a", [7]), request("b", [8], sample=1)
    engine.step([a, b], [4, 4], [[7], [8]])
    a.output_ids += [5, 6, 0, 9]
    a.finished_len = 4  # 0 is the stop
    engine.rows.leave("a")
    assert length(engine.drafter, "g", 0) == 4
    b.output_ids += [5, 6]
    engine.step([], [], [])  # retracted
    assert length(engine.drafter, "g", 1) == 3


def test_an_image_in_the_prompt_is_no_token() -> None:
    engine, req = Engine(), request("a", [7])
    req.origin_input_ids[1] = 1 << 40
    assert engine.step([req], [4], [[7]]) == []
    assert length(engine.drafter, "g", 0) == 1


@pytest.mark.parametrize(
    "given",
    [
        None,
        "nonsense",
        {},
        {"group": 5, "sample": 0, "prompt_len": 3},
        {"group": "g", "sample": -1, "prompt_len": 3},
        {"group": "g", "sample": 1 << 31, "prompt_len": 3},
        {"group": "g", "sample": 0, "prompt_len": 4},
        {"group": "g", "sample": 0, "prompt_len": 0},
    ],
)
def test_a_call_without_an_origin_has_a_group_of_its_own(given: Any) -> None:
    req = request("r1", [])
    req.sampling_params.custom_params = {"seer_sgl": given} if given is not None else None
    origin = origin_of(req)
    assert (origin.group, origin.sample, origin.prompt_len) == ("r1", 0, 3)


def test_what_one_rank_drafts_all_ranks_verify() -> None:
    drafts = as_drafts([[(-1, 5), (0, 6)], [(-1, 7)]])
    plan = ranks._unpack(ranks._pack(StepPlan(3, drafts), 2, 9), 2, 9)
    assert plan.width == 3
    assert plan.drafts is not None
    assert plan.drafts.counts.tolist() == [2, 1]
    for i, count in enumerate([2, 1]):
        assert plan.drafts.tokens[i, :count].tolist() == drafts.tokens[i, :count].tolist()
        assert plan.drafts.parents[i, :count].tolist() == drafts.parents[i, :count].tolist()
    assert ranks._unpack(ranks._pack(PLAIN, 2, 9), 2, 9) == PLAIN


def test_the_operators_of_speculative_decoding_gather_scatter_and_move() -> None:
    table = torch.arange(40, dtype=torch.int32).view(4, 10)
    rows, start, end = torch.tensor([2, 0]), torch.tensor([1, 4]), torch.tensor([4, 6])
    out = torch.zeros(6, dtype=torch.int64)
    kernels.assign_extend_cache_locs_cpu(rows, table, start, end, out, 10)
    assert out.tolist() == [21, 22, 23, 4, 5, 0]
    slots = torch.tensor([90, 91, 92, 93, 94])
    kernels.assign_req_to_token_pool_cpu(rows, table, start, end, slots, 10)
    assert table[2].tolist() == [20, 90, 91, 92, *range(24, 30)]
    assert table[0, 4:6].tolist() == [93, 94]
    accepted = torch.zeros(6, dtype=torch.int64)
    kernels.fill_accept_out_cache_loc_cpu(
        torch.tensor([[0, 2, -1], [4, -1, -1]], dtype=torch.int32),
        torch.tensor([10, 11, 12, 13, 14, 15]),
        accepted,
    )
    assert accepted.tolist() == [10, 12, 14, 0, 0, 0]
    buffers = [torch.arange(8.0).view(4, 2), torch.arange(4, dtype=torch.bfloat16).view(4, 1)]
    kernels.copy_all_layer_kv_cache_cpu(
        torch.tensor([buffer.data_ptr() for buffer in buffers]),
        torch.tensor([8, 2]),
        torch.tensor([1, 2]),
        torch.tensor([2, 3]),  # overlapping: read before written
    )
    assert buffers[0].tolist() == [[0, 1], [4, 5], [6, 7], [6, 7]]
    assert buffers[1].flatten().tolist() == [0, 2, 3, 3]


def test_sglangs_own_tree_operators_agree_with_the_layout_they_are_given() -> None:
    # Two branches from the root: 0 -> 1 -> 3, 0 -> 2.
    mask = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)
    positions = torch.zeros(4, dtype=torch.int64)
    index, child, sibling = (torch.zeros((1, 4), dtype=torch.int64) for _ in range(3))
    kernels.reconstruct_indices_from_tree_mask(
        mask, torch.tensor([7]), positions, index, child, sibling, 1, 4
    )
    assert positions.tolist() == [7, 8, 8, 9]
    assert child.tolist() == [[1, 3, -1, -1]]
    assert sibling.tolist() == [[-1, 2, -1, -1]]
    predicts = torch.zeros(4, dtype=torch.int32)
    path = torch.full((1, 4), -1, dtype=torch.int32)
    count = torch.zeros(1, dtype=torch.int32)
    kernels.verify_tree_greedy_cpu(
        predicts,
        path,
        count,
        torch.tensor([[50, 51, 52, 53]]),
        index,
        child,
        sibling,
        torch.tensor([[51, 53, 9, 60]]),
    )
    assert path.tolist() == [[0, 1, 3, -1]]
    assert (count.item(), predicts.tolist()) == (2, [51, 53, 0, 60])
