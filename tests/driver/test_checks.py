"""Warnings before a rollout: what fits together and yet costs time."""

import msgspec
import pytest

from seer_sgl.driver.checks import LengthLimits, cut_fetches
from seer_sgl.engine_types import EngineInfo
from seer_sgl.types import Prompt, token_array
from tests.support.infos import info


def engine(kv_tokens: int) -> EngineInfo:
    return msgspec.structs.replace(info("e0"), max_total_num_tokens=kv_tokens, max_request_len=4096)


def test_host_memory_beyond_the_device_that_holds_no_long_response_is_reported() -> None:
    (warning,) = cut_fetches(0.1, [engine(8192)], longest=4000)
    assert "engine e0 has host memory to fetch 819 KV tokens, but a response may have" in warning
    assert list(cut_fetches(1.0, [engine(8192)], longest=4000)) == []
    assert list(cut_fetches(0.1, [engine(41_000)], longest=100_000)) == [], "the context ends it"


@pytest.mark.parametrize(
    ("continues", "images", "wanted", "limit"),
    [
        (False, 1500, 3000, 4000 - 50 - 1500 - 256),  # stock SGLang would refuse 3000
        (False, 1500, 1000, 1000),
        (False, 9000, 3000, 3000),
        (False, 0, 3950, 3950),
        (True, 1500, 3000, 3000),
    ],
)
def test_stock_engines_are_asked_for_what_images_surely_leave(
    continues: bool, images: int, wanted: int, limit: int
) -> None:
    engine = msgspec.structs.replace(
        info("e0"),
        max_total_num_tokens=100_000,
        max_request_len=4000,
        continues_images=continues,
    )
    limits = LengthLimits([engine])
    text = Prompt(prompt_id="p", prompt_ids=token_array(range(50)), n=1)
    prompt = msgspec.structs.replace(text, image_data=("u",) if images else (), image_tokens=images)
    assert limits.response_limit(prompt, wanted) == limit
    assert limits.response_limit(text, wanted, prompt) == limit, "a turn of a trajectory"
