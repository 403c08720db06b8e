"""External servers with two ranks each, a running Mooncake and several draft hubs: KV moves
between them as between local servers, a move waits for both ranks, and each hub has its groups."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from seer_sgl.config import KvPoolConfig
from seer_sgl.draft.messages import hub_of
from seer_sgl.kvpool.mooncake import open_mooncake
from seer_sgl.processes.child import free_port
from tests.e2e.compare import (
    Migrations,
    accepted_drafts,
    assert_identical,
    roll,
    roll_singly,
    rolled,
)
from tests.e2e.conftest import (
    HELD_OUT,
    draft_hubs,
    each_rank_on_a_core,
    external,
    servers,
    two_urls,
)
from tests.e2e.pools import SGLANG, assert_on_loopback
from tests.e2e.rig import PAGE
from tests.support.timing import PATIENT

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

TOKEN = "a secret of this test"
PROMPTS = 3
SINGLE = 8  # most requests that run alone
ENOUGH = 5  # moves that find all of their KV
HUBS = 3  # two of them serve the three groups
# SGLang's own variable: the cores of each rank.
RANKS = each_rank_on_a_core()


def fleet_of(urls: list[str], master: str) -> dict[str, Any]:
    config = external(urls, scheduling={"chunk_tokens": 128}, sampling={"max_response_len": 1000})
    sglang = {**SGLANG, "tp-size": 2}
    config["engines"] |= {"link": f"127.0.0.1:{free_port()}", "sglang": sglang}
    pool = {"backend": "mooncake", "master": master, "page_size": PAGE}
    hubs = ",".join(f"127.0.0.1:{free_port()}" for _ in range(HUBS))
    draft = {"scope": "fleet", "hub": hubs}
    return config | {"kv_pool": {**pool, "namespace": "this-test"}, "draft": draft}


async def test_kv_moves_between_servers_of_two_ranks_that_were_started_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEER_SGL_LINK_TOKEN", TOKEN)
    pool = KvPoolConfig(backend="mooncake", memory="256mb")
    async with open_mooncake(pool, tmp_path) as master:
        urls = two_urls()
        config = fleet_of(urls, master)
        fleet = tmp_path / "fleet.yaml"
        fleet.write_text(yaml.safe_dump(config))
        with (
            draft_hubs(config["draft"]["hub"]),
            servers(urls, [["--fleet", str(fleet)]] * 2, tmp_path, RANKS),
        ):
            assert_on_loopback(at_least=16)
            seen, moves = Migrations(), AlwaysElsewhere(fetch=True)

            def enough() -> bool:
                return sum(tokens <= PAGE + 1 for tokens in seen.recomputed_after_fetch) >= ENOUGH

            async with Rollout(config, placement=moves, timing=PATIENT) as rollout:
                parts, report = await rolled(rollout, PROMPTS, [seen])
                # Two engines of two ranks share two cores. A busy machine blocks them for seconds,
                # and they report KV as missing that arrives later: how many moves find all of it is
                # not theirs to say. Those of single requests, without others, do.
                single = rollout.read_prompts(HELD_OUT)[PROMPTS : PROMPTS + SINGLE]
                await roll_singly(rollout, single, [seen], enough)
            # Last: its pages have the same names, and are released seconds after its end.
            alone = {**config["engines"], "urls": urls[:1]}
            undivided = {**config, "engines": alone, "scheduling": {"divide": False}}
            whole, plain = await roll(undivided, PROMPTS)
    assert plain["chunks"] == plain["samples"] == 8 * PROMPTS
    assert_identical(whole, parts)
    assert accepted_drafts(report) > 100, "both ranks verify the drafts of the first one"
    hub = report["drafting"]["hub"]
    assert len({hub_of(group, HUBS) for group, _ in whole}) == 2
    assert hub["groups"] == PROMPTS, "each is known to one hub"
    assert hub["tokens_out"] > 100
    assert not seen.left_kv_behind, "a move leaves no KV behind that was not reported missing"
    assert report["migrations"] > 20
