"""An engine with SGLang's sessions keeps the KV of conversations while single prompts fill it."""

from pathlib import Path

import pytest

from bench.sessions import KV_TOKENS, MORE, TALKS, TURNS, converse
from seer_sgl import Rollout
from tests.e2e.pools import local
from tests.server.helpers import served_config

pytestmark = [pytest.mark.own_engines, pytest.mark.long, pytest.mark.timeout(1200)]

FLAG = "enable-session-radix-cache"
BETWEEN = 3  # single prompts between two turns


async def test_the_kv_of_a_conversation_outlasts_that_of_single_prompts(tmp_path: Path) -> None:
    answers = []
    for kept in (False, True):
        config = local(1, server={"port": 0})
        flags = {**config["engines"]["sglang"], "max-total-tokens": KV_TOKENS, FLAG: kept}
        config["engines"] = {**config["engines"], "sglang": flags}
        rollout = Rollout(config, gives_up=False, log_dir=tmp_path / str(kept))
        async with served_config(rollout) as it:
            assert rollout.engines[0].sessions is kept
            talks, cached, total = await converse(it.url, BETWEEN)
            assert len(it.service.generation.sessions) == 0, "all of them were closed"
        could = total - TALKS * (TURNS - 1) * MORE
        answers.append(talks)
        if kept:
            assert cached > 0.9 * could
        else:
            assert cached < 0.1 * could
    assert answers[0] == answers[1]
