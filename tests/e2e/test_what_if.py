"""`seer-sgl what-if --replay` on real engines: the recorded lengths, under every order."""

import asyncio
from pathlib import Path

import pytest

from seer_sgl.what_if.command import WhatIf, WhatIfRequest
from seer_sgl.what_if.replay import REPLAYED
from tests.e2e.conftest import SERVER_FLAGS, servers, two_urls

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

LENGTHS = [[20, 90], [15, 8], [60, 30], [5, 41]]
PROMPT = 40


async def test_a_trace_is_replayed_with_its_lengths(tmp_path: Path) -> None:
    trace, urls = tmp_path / "trace.csv", two_urls()
    rows = [f"{g},{n},{PROMPT}\n" for g, lengths in enumerate(LENGTHS) for n in lengths]
    trace.write_text("".join(rows))
    with servers(urls, [SERVER_FLAGS, SERVER_FLAGS], tmp_path):
        request = WhatIfRequest(traces=[trace], engine=urls, replay=True, rounds=1, draws=0)
        asked = WhatIf(request)
        await asyncio.to_thread(asked.ask)
        await asked.replay()
    replayed = asked.answer.replayed
    assert [each.order for each in replayed] == list(REPLAYED)
    assert {each.tokens for each in replayed} == {sum(map(sum, LENGTHS))}
    assert all(each.wall_s > 0 for each in replayed)
    assert len(asked.answer.replayed_ratios) == 2
