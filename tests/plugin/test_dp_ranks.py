"""What the plugin does in a server of several data-parallel ranks, without SGLang."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from seer_sgl.link import contract
from seer_sgl.plugin.dp_ranks import DpRank, failures_first, until_one_ends

from .stand_ins import replace_module


@pytest.mark.parametrize(
    ("rank", "size", "number", "name"),
    [(1, 2, 1, "start.dp1"), (0, 2, 0, "start.dp0"), (None, 1, 0, "start")],
)
def test_each_rank_of_a_server_has_a_name_of_its_own(
    rank: int | None, size: int, number: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parallel = SimpleNamespace(dp_rank=rank, dp_size=size)
    replace_module(monkeypatch, "sglang.srt.runtime_context", get_parallel=lambda: parallel)
    monkeypatch.setenv(contract.INSTANCE, "start")
    own = DpRank()
    own.begin()
    assert own.number == number
    assert os.environ[contract.INSTANCE] == name


async def test_an_answer_for_all_ranks_is_a_failure_if_one_has_failed() -> None:
    replies = [SimpleNamespace(success=success, rank=rank) for rank, success in enumerate((1, 0))]
    others = [SimpleNamespace(internal_state={}), SimpleNamespace(internal_state={})]

    async def stock(communicator: Any, obj: Any) -> list[Any]:
        return list(obj)

    first, *_ = await failures_first(stock, None, replies)
    assert first.rank == 1
    assert await failures_first(stock, None, others) == others, "results that cannot fail"


@pytest.mark.process
def test_the_end_of_one_scheduler_is_seen_also_while_nobody_waits_for_it() -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(sleeper) as one, subprocess.Popen(sleeper) as other:
        try:
            looks = iter([lambda: None, other.kill])
            pids = [one.pid, other.pid]
            assert until_one_ends(pids, lambda _: next(looks, lambda: None)()) == other.pid
        finally:
            one.kill()
            other.kill()
