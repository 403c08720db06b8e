"""What belongs to accepted draft tokens moves to the first slots of their row."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.draft.tree import lay_out
from seer_sgl.plugin.speculation.algorithm import room_for_rows
from seer_sgl.plugin.speculation.moved import move_accepted
from seer_sgl.plugin.speculation.walk import upload, walk
from tests.draft.trees import Tree, as_drafts, trees

from .stand_ins import replace_module

SLOTS = 200


class Cache:
    """KV of one number per slot."""

    def __init__(self) -> None:
        self.kv = torch.arange(SLOTS)

    def move_kv_cache(self, targets: torch.Tensor, sources: torch.Tensor) -> None:
        self.kv[targets] = self.kv[sources]


@pytest.mark.parametrize("overlap", [False, True])
@given(st.lists(trees(), min_size=1, max_size=4), st.integers(1, 11), st.randoms())
def test_kv_and_routed_experts_move_alike(
    overlap: bool, rows: list[Tree], width: int, dice: random.Random
) -> None:
    nodes = upload(lay_out(as_drafts(rows), width), torch.tensor([9] * len(rows)))
    draws = [[dice.randint(0, 2) for _ in range(width)] for _ in rows]
    walked = walk(nodes, torch.tensor(draws))
    picked = dice.sample(range(SLOTS), len(rows) * width)
    slots = torch.tensor(picked).view(len(rows), width)
    cache, buffer = Cache(), torch.arange(SLOTS)[:, None, None].expand(SLOTS, 2, 3).clone()
    capturer: Any = SimpleNamespace(host_cache=SimpleNamespace(buffer=buffer))
    output = SimpleNamespace(topk=buffer[slots.view(-1)]) if overlap else None
    result: Any = SimpleNamespace(routed_experts_output=output)
    move_accepted(cache, capturer, result, slots, walked)
    if output is not None:  # the host takes them later
        assert buffer[:, 0, 0].tolist() == list(range(SLOTS))
        buffer[slots.view(-1)] = output.topk
    assert (buffer == cache.kv[:, None, None]).all()
    for row, count in enumerate(walked.lens.tolist()):
        path = walked.path[row, :count]
        assert cache.kv[slots[row, :count]].tolist() == slots[row, path].tolist()
        assert cache.kv[slots[row, count:]].tolist() == slots[row, count:].tolist()


def test_engines_without_routed_experts_move_kv_only() -> None:
    nodes = upload(lay_out(as_drafts([[(-1, 1), (-1, 2)]]), 3), torch.tensor([9]))
    walked = walk(nodes, torch.tensor([[2, 0, 0]]))
    cache, result = Cache(), object()
    moved: Any = result
    move_accepted(cache, None, moved, torch.tensor([[5, 6, 7]]), walked)
    assert cache.kv[5:8].tolist() == [5, 7, 7]


@pytest.mark.parametrize(("algorithm", "room"), [("SEER_GROUP", 85), (None, 5)])
def test_sglang_has_room_for_the_rows_of_a_verification(
    monkeypatch: pytest.MonkeyPatch, algorithm: str | None, room: int
) -> None:
    spec = SimpleNamespace(speculative_algorithm=algorithm, speculative_num_draft_tokens=17)
    replace_module(monkeypatch, "sglang.srt.runtime_context", get_spec=lambda: spec)
    assert room_for_rows(max_running_requests=5, device="cpu") == (
        (),
        {"max_running_requests": room, "device": "cpu"},
    )
