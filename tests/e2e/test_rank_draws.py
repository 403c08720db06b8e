"""Two ranks of a real engine that draw different tokens: those of the first one count."""

from pathlib import Path
from typing import Any

import pytest

from bench import engine_plugin
from tests.e2e.compare import accepted_drafts, assert_identical, roll
from tests.e2e.conftest import two_ranks_on_cores
from tests.e2e.pools import SGLANG, local
from tests.support import flipped_draws

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

PROMPTS = 1


def two_ranks(environment: dict[str, str], **sections: Any) -> dict[str, Any]:
    own = local(1, sampling={"max_response_len": 400}, **sections)
    own["engines"] |= {"sglang": SGLANG | {"tp-size": 2}, **two_ranks_on_cores(1)}
    own["engines"]["environment"] |= environment
    return own


async def test_ranks_that_draw_other_tokens_stay_together(tmp_path: Path) -> None:
    whole, _ = await roll(two_ranks({}, scheduling={"divide": False}), PROMPTS)
    flips = tmp_path / "flips"
    plugin = engine_plugin.environment(
        tmp_path / "plugin", "seer_sgl_flipped_draws", f"{flipped_draws.__name__}:load"
    )
    own = two_ranks(plugin | {flipped_draws.FILE: str(flips)}, draft={"scope": "engine"})
    parts, report = await roll(own, PROMPTS)
    assert_identical(whole, parts)
    assert accepted_drafts(report) > 20, report["drafting"]
    assert flips.stat().st_size > 10, "verifications whose ranks did not agree by themselves"
