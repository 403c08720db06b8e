"""Rows of routed experts in SGLang's scheduler: whose they are, whatever happens to KV slots."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seer_sgl.plugin.expert_rows import ExpertCapture, KeptRows
from seer_sgl.routed_experts import ExpertShape

SLOTS = 100
PROMPT = list(range(10))


def row(value: int) -> list[list[int]]:
    return [[value, value + 1], [value + 2, value + 3]]


class Scheduler:
    """The parts of one request's scheduler: slots, rows per slot, and the plugin's part."""

    def __init__(self) -> None:
        self.rows = torch.full((SLOTS, 2, 2), -7, dtype=torch.int32)
        self.pool: Any = SimpleNamespace(req_to_token=torch.zeros((1, 50), dtype=torch.int64))
        capturer: Any = SimpleNamespace(
            num_layers=2, topk_size=2, host_cache=SimpleNamespace(buffer=self.rows)
        )
        self.part = ExpertCapture(capturer)
        self.processor: Any = SimpleNamespace(req_to_token_pool=self.pool)

    def slots(self, first: int, count: int, begin: int) -> None:
        """Gives a request's positions from `begin` on the slots from `first` on."""
        self.pool.req_to_token[0, begin : begin + count] = torch.arange(first, first + count)

    def computed(self, value: int, positions: range) -> None:
        """Fills the rows of the slots of some positions, as a forward step does."""
        for position in positions:
            slot = int(self.pool.req_to_token[0, position])
            self.rows[slot] = torch.tensor(row(value + position), dtype=torch.int32)

    def prefilled(self, req: Any, cached: int, count: int, overlap: bool = False) -> None:
        """Reports the end of a prefill, behind one of another request with 3 tokens."""
        other = SimpleNamespace(return_routed_experts=False)
        slots = [97, 98, 99, *self.pool.req_to_token[0, cached : cached + count].tolist()]
        batch: Any = SimpleNamespace(
            reqs=[other, req],
            prefix_lens=[0, cached],
            extend_lens=[3, count],
            out_cache_loc=torch.tensor(slots),
        )
        result: Any = SimpleNamespace(routed_experts_output=None, copy_done=None)
        if overlap:
            topk = self.rows[batch.out_cache_loc].clone()
            self.rows[batch.out_cache_loc] = -9  # not there yet
            waited: list[bool] = []
            result.copy_done = SimpleNamespace(synchronize=lambda: waited.append(True))
            result.routed_experts_output = SimpleNamespace(topk=topk)
        self.part.keep_prefilled(self.processor, batch, result)
        assert not overlap or waited

    def collected(self, req: Any) -> Any:
        def stock(*_: object) -> None:
            raise AssertionError("SGLang's own way")

        self.part.collect(stock, self.processor, req)
        return req.routed_experts


def request(start: int, output: int = 0, dtype: str | None = "uint8") -> Any:
    origin = {} if dtype is None else {"seer_sgl": {"experts": dtype}}
    return SimpleNamespace(
        return_routed_experts=True,
        routed_experts_start_len=start,
        routed_experts=None,
        origin_input_ids=PROMPT,
        output_ids=[0] * output,
        output_ids_through_stop=[0] * output,
        kv=SimpleNamespace(req_pool_idx=0),
        sampling_params=SimpleNamespace(custom_params=origin),
    )


def generated(req: Any, count: int) -> None:
    req.output_ids = req.output_ids_through_stop = [0] * count


@pytest.mark.parametrize("overlap", [False, True])
def test_rows_of_a_prefill_are_kept_before_its_slots_are_given_back(overlap: bool) -> None:
    it, req = Scheduler(), request(0)
    assert it.part.compute_wanted(9, req, 10) == 0, "the whole prompt is computed"
    it.slots(20, 10, 0)
    it.computed(0, range(6))
    it.prefilled(req, 0, 6, overlap)  # in two pieces
    it.computed(0, range(6, 10))
    it.prefilled(req, 6, 4, overlap)
    it.slots(60, 8, 0)  # the cache's own, with rows of nobody
    it.computed(0, range(10, 12))
    generated(req, 1)
    it.slots(70, 2, 10)
    it.computed(0, range(10, 12))
    generated(req, 3)
    rows = it.collected(req)
    assert rows.dtype == torch.uint8
    assert rows.tolist() == [row(position) for position in range(12)]


def test_a_continuation_computes_the_last_token_of_its_input_only() -> None:
    it, req = Scheduler(), request(9)
    assert it.part.compute_wanted(9, req, 10) == 9
    it.slots(20, 12, 0)
    it.computed(0, range(8, 12))
    it.prefilled(req, 8, 2)  # a page that was not whole is computed again
    generated(req, 3)
    assert it.collected(req).tolist() == [row(position) for position in range(9, 12)]


def test_a_preempted_request_keeps_the_rows_that_its_tokens_were_sampled_with() -> None:
    it, req = Scheduler(), request(9)
    it.slots(20, 13, 0)
    it.computed(0, range(9, 13))
    it.prefilled(req, 9, 1)
    generated(req, 4)
    it.part.keep_decoded(req=req, req_to_token_pool=it.pool, offload_kv=False)
    it.rows[:] = -8
    assert it.part.compute_wanted(13, req, 14) == 13, "what is kept may be cached"
    it.slots(40, 16, 0)
    it.computed(100, range(16))  # with other weights
    it.prefilled(req, 0, 14)
    generated(req, 7)
    again = [row(position) for position in range(9, 13)]
    again += [row(100 + position) for position in range(13, 16)]
    assert it.collected(req).tolist() == again


def test_a_request_that_is_preempted_in_its_prefill_has_nothing_to_keep() -> None:
    it, req = Scheduler(), request(0)
    it.part.keep_decoded(req=req, req_to_token_pool=it.pool)
    it.slots(20, 11, 0)
    it.computed(0, range(10))
    it.prefilled(req, 0, 10)
    generated(req, 1)
    assert it.collected(req).tolist() == [row(position) for position in range(10)]


def test_other_clients_get_sglangs_dtype_and_rows_that_do_not_fit_are_left() -> None:
    for dtype, value, expected in (
        (None, 0, torch.int32),
        ("uint8", 0, torch.uint8),
        ("int16", 1000, torch.int16),
        ("uint8", 1000, torch.int32),
        ("uint8", -20, torch.int32),
        ("no dtype", 0, torch.int32),
    ):
        it, req = Scheduler(), request(9, 1, dtype)
        it.slots(20, 10, 0)
        it.computed(value, range(10))
        it.prefilled(req, 9, 1)
        assert it.collected(req).dtype == expected
        assert req.routed_experts.tolist() == [row(value + 9)]


def test_requests_that_ask_for_none_are_left_to_sglang() -> None:
    it, req, called = Scheduler(), request(0), list[Any]()
    req.return_routed_experts = False
    assert it.part.compute_wanted(9, req, 10) == 9
    it.part.keep_decoded(req=req, req_to_token_pool=it.pool)
    it.part.collect(lambda *given: called.append(given), it.processor, req)
    assert called == [(it.processor, req)]
    req.return_routed_experts = True
    without = ExpertCapture()
    assert without.compute_wanted(9, req, 10) == 9, "the server returns none"


def test_rows_behind_a_gap_are_not_kept() -> None:
    kept = KeptRows(3)
    kept.add(5, torch.zeros((4, 2, 2)))
    assert (kept.end, kept.parts) == (3, [])


@pytest.mark.parametrize(
    ("named", "experts"),
    [({"num_experts": 128}, 128), ({"n_routed_experts": 256}, 256), ({}, 1 << 15)],
)
def test_the_form_of_the_rows_is_reported(named: dict[str, int], experts: int) -> None:
    config: Any = SimpleNamespace(hf_text_config=SimpleNamespace(**named))
    assert Scheduler().part.shape(config) == ExpertShape(2, 2, experts)
    assert ExpertCapture().shape(config) is None
