"""Warnings before a rollout: what fits together and yet costs time."""

import msgspec

from seer_sgl.driver.checks import cut_fetches
from seer_sgl.engine_types import EngineInfo
from tests.support.infos import info


def engine(kv_tokens: int) -> EngineInfo:
    return msgspec.structs.replace(info("e0"), max_total_num_tokens=kv_tokens, max_request_len=4096)


def test_host_memory_beyond_the_device_that_holds_no_long_response_is_reported() -> None:
    (warning,) = cut_fetches(1.1, [engine(8192)], longest=4000)
    assert warning.startswith("kv_pool.host_ratio: engine e0 has host memory for 819 KV tokens")
    assert list(cut_fetches(2.0, [engine(8192)], longest=4000)) == []
    assert list(cut_fetches(1.1, [engine(41_000)], longest=100_000)) == [], "the context ends it"
