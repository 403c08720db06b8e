"""Plain engines as `engines.exact` starts them on a GPU, run on a CPU: our algorithm, no drafts.

Here their plain steps are decode steps. So this shows what surrounds a step: KV slots, results,
stops and reports. The verification of the root alone needs a GPU or tests/emulation.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from seer_sgl.engine.launch.exact import ROOT_ONLY
from seer_sgl.engine.launch.process import server_flags
from tests.e2e.compare import assert_identical, roll
from tests.e2e.conftest import SERVER_FLAGS, external, servers, two_cores, two_urls

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

PROMPTS = 4
KINDS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1},
]


def config(urls: list[str], sampling: dict[str, Any], divide: bool) -> dict[str, Any]:
    own = external(
        urls,
        scheduling={"chunk_tokens": 96, "divide": divide},
        sampling={**sampling, "max_response_len": 256},
        rollout={"seed": 5},
    )
    own["engines"]["exact"] = True
    return own


def test_engines_that_verify_the_root_alone_bring_the_samples_of_a_plain_engine(
    tmp_path: Path,
) -> None:
    plain, first, second = *two_urls(), *two_urls()[:1]
    root_only = [*SERVER_FLAGS, *server_flags(ROOT_ONLY)]
    flags, cores = [SERVER_FLAGS, root_only, root_only], [*two_cores(), two_cores()[1]]

    async def drafting() -> list[int]:
        async with Rollout(config([first, second], {}, divide=True)) as rollout:
            return [engine.draft_tokens for engine in rollout.engines]

    with servers([plain, first, second], flags, tmp_path, cores=cores):
        moves = []
        for sampling in KINDS:
            whole, _ = asyncio.run(roll(config([plain], sampling, divide=False), PROMPTS))
            divided = config([first, second], sampling, divide=True)
            parts, report = asyncio.run(roll(divided, PROMPTS, placement=AlwaysElsewhere()))
            assert_identical(whole, parts)
            assert report["accept_length"] is None
            assert report["drafting"] is None
            moves.append(report["migrations"])
        assert moves[0] > 0, "only a penalty keeps a request undivided"
        assert asyncio.run(drafting()) == [0, 0]
