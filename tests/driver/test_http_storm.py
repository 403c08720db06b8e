"""A rollout over HTTP on servers with every kind of fault: each sample once, its tokens exact."""

import pytest

from tests.soak.http_storm import SHARES, weather

pytestmark = pytest.mark.process


async def test_every_sample_comes_once_over_http_although_servers_fail() -> None:
    storm = await weather(requests=1200, servers=4, seed=1)
    assert {kind.partition(" ")[0] for kind in SHARES} <= set(storm.counts)
    assert storm.report["lost_chunks"] > 50
