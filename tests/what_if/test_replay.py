"""A trace replayed on fake servers: every order gets the recorded lengths and the same prompts."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from seer_sgl.errors import ConfigError, RolloutError
from seer_sgl.what_if.command import WhatIf, WhatIfRequest
from seer_sgl.what_if.orders import OrderRow
from seer_sgl.what_if.replay import REPLAYED, ReplayedRollout, ratios
from tests.fake_sglang import FakeSGLang, serving_all
from tests.what_if.endless import LENGTHS, PROMPTS, EndlessSGLang, write_trace

CHUNK = 16


async def replayed(tmp_path: Path, fakes: Sequence[FakeSGLang], *, rounds: int = 2) -> WhatIf:
    async with serving_all(list(fakes)) as urls:
        request = WhatIfRequest(
            traces=[write_trace(tmp_path / "t.csv")],
            engine=urls,
            replay=True,
            rounds=rounds,
            draws=0,
            overrides=[f"scheduling.chunk_tokens={CHUNK}"],
        )
        asked = WhatIf(request)
        await asyncio.to_thread(asked.ask)
        await asked.replay()
    return asked


def calls(fake: FakeSGLang) -> list[tuple[int, int]]:
    """The input tokens and the budget of each call."""
    return [(len(c["input_ids"]), c["sampling_params"]["max_new_tokens"]) for c in fake.seen]


async def test_every_order_generates_the_recorded_lengths(tmp_path: Path) -> None:
    fakes = [EndlessSGLang(), EndlessSGLang()]
    asked = await replayed(tmp_path, fakes)
    answer = asked.answer
    total = sum(map(sum, LENGTHS))
    assert [each.order for each in answer.replayed] == [*REPLAYED, *REPLAYED[::-1]]
    assert {each.tokens for each in answer.replayed} == {total}
    assert [each.order for each in answer.replayed_ratios] == list(REPLAYED[:-1])


async def test_today_s_orders_send_whole_requests_of_new_prompts_and_ours_chunks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = EndlessSGLang()
    asked = await replayed(tmp_path, [fake], rounds=1)
    asked.show(Console(width=200), as_json=False)
    assert "Replayed on the given servers, 1 rounds" in capsys.readouterr().out
    sent = calls(fake)[2:]  # behind the warm-up
    rollouts = fake.seen[2:14], fake.seen[14:26]
    prompts = [{tuple(call["input_ids"]) for call in rollout} for rollout in rollouts]
    assert [len(each) for each in prompts] == [4, 4]
    assert not prompts[0] & prompts[1]
    whole = Counter((PROMPTS[g], n) for g, lengths in enumerate(LENGTHS) for n in lengths)
    assert Counter(sent[:12]) == Counter(sent[12:24]) == whole
    ours = sent[24:]
    assert max(budget for _, budget in ours) == CHUNK
    assert sum(budget for _, budget in ours) == sum(map(sum, LENGTHS))
    assert all(c["sampling_params"]["ignore_eos"] for c in fake.seen)


def test_a_simulation_that_takes_no_time_has_a_ratio() -> None:
    rollouts = [
        ReplayedRollout(order=order, round=0, wall_s=2.0, tail_s=0.0, tokens=1)
        for order in REPLAYED
    ]
    none: dict[str, Any] = dict.fromkeys(OrderRow.__struct_fields__, 0)
    found = ratios(rollouts, [OrderRow(**none | {"name": order}) for order in REPLAYED])
    assert [ratio.simulated_wall for ratio in found] == [1.0, 1.0]


async def test_a_request_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--replay: a request of 73 tokens"):
        await replayed(tmp_path, [FakeSGLang(max_request_len=73)])


async def test_a_request_that_fails_for_good_ends_the_replay(tmp_path: Path) -> None:
    fake = EndlessSGLang()
    fake.faults.extend(["ok"] * 2 + ["400"])
    with pytest.raises(RolloutError, match="--replay: "):
        await replayed(tmp_path, [fake])
