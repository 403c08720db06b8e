"""A verification keeps the logprobs of accepted nodes and gives all ranks the same tokens."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seer_sgl.draft.tree import lay_out
from seer_sgl.plugin.speculation import ranks, verify
from seer_sgl.plugin.speculation.node_sampler import ASKED_LOGPROBS
from seer_sgl.plugin.speculation.verify import Verified
from seer_sgl.plugin.speculation.walk import Walk, upload
from tests.draft.trees import as_drafts

VALUES, IDS = ASKED_LOGPROBS[0], ASKED_LOGPROBS[3]
PATHS = [[0, 2, -1], [0, -1, -1]]  # of two trees of three nodes


def output(device: str) -> Any:
    """Returns logprobs: two per node of the first request, none of the second one's nodes."""
    fields = dict.fromkeys(ASKED_LOGPROBS)
    top = [torch.tensor([10.0 * node, 10.0 * node + 1]) for node in range(3)]
    fields[VALUES] = [row.to(device) for row in (*top, *[torch.empty(0)] * 3)]
    fields[IDS] = [[5], [5], [5], [], [], []]
    return SimpleNamespace(next_token_logprobs=torch.arange(6.0, device=device), **fields)


def walked(device: str) -> Walk:
    lens = torch.tensor([2, 1], dtype=torch.int32)
    return Walk(torch.tensor(PATHS).to(device), lens.to(device))


def test_logprobs_of_accepted_nodes_are_kept_without_knowing_them_on_the_host() -> None:
    kept = output("cpu")
    verify._keep(kept, walked("cpu"))
    assert kept.next_token_logprobs.shape == (2, 3)
    assert kept.next_token_logprobs[0, :2].tolist() == [0, 2]
    assert kept.next_token_logprobs[1, 0] == 3
    assert [row.tolist() for row in getattr(kept, VALUES)[:2]] == [[0, 1], [20, 21]]
    assert [len(row) for row in getattr(kept, VALUES)[3:]] == [0, 0, 0]
    assert getattr(kept, IDS) == [[5], [5], [5], [], [], []]
    nowhere = output("meta")  # tensors without data: reading one would raise
    verify._keep(nowhere, walked("meta"))
    assert [len(row) for row in getattr(nowhere, VALUES)] == [2, 2, 2, 0, 0, 0]


class FakeGroup:
    """SGLang's GroupCoordinator of one rank, between threads of this process."""

    world_size = 2

    def __init__(self, rank: int, meeting: threading.Barrier, sent: list[torch.Tensor]) -> None:
        self._rank, self._meeting, self._sent = rank, meeting, sent

    def broadcast(self, tensor: torch.Tensor, src: int) -> torch.Tensor:
        if self._rank == src:
            self._sent.append(tensor.clone())
        self._meeting.wait(timeout=60)
        return tensor.copy_(self._sent[-1])


def two_ranks(rank: Callable[[int], Verified], monkeypatch: pytest.MonkeyPatch) -> list[Verified]:
    """Returns what `rank` returns on two ranks that run together."""
    here, meeting, sent = threading.local(), threading.Barrier(2), list[torch.Tensor]()
    monkeypatch.setattr(ranks, "tp_group", lambda: here.group)
    done: dict[int, Verified] = {}

    def run(number: int) -> None:
        here.group = FakeGroup(number, meeting, sent)
        done[number] = rank(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [done[number] for number in (0, 1)]


def test_ranks_that_draw_differently_stay_together_with_the_draws_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = [[1, 2, 9], [9, 0, 0]]  # drawn at the root, at its child and at its grandchild
    drafts = as_drafts([[(-1, 1), (0, 2)], [(-1, 1), (0, 2)]])

    def rank(number: int) -> Verified:
        draws = torch.tensor(tokens, dtype=torch.int32)
        draws[1, 0] = 1 if number else 9  # rounding makes rank 1 accept a draft more
        sampler = SimpleNamespace(draw=lambda *_: draws.view(-1))
        monkeypatch.setattr(verify, "NodeSampler", lambda *_: samplers[threading.get_ident()])
        samplers[threading.get_ident()] = sampler
        nodes = upload(lay_out(drafts, 3), torch.tensor([7, 8]))
        batch: Any = SimpleNamespace(return_logprob=False)
        nothing: Any = None
        return verify.verify(nothing, batch, nothing, nodes, torch.arange(6), None)

    samplers: dict[int, Any] = {}
    first, second = two_ranks(rank, monkeypatch)
    assert first.tokens.tolist() == second.tokens.tolist() == [[1, 2, 9], [9, 0, 0]]
    assert first.walked.lens.tolist() == second.walked.lens.tolist() == [3, 1]
