"""What a response may have, by an engine's context and KV cache and by the images of its prompt."""

import msgspec
import pytest

from seer_sgl.driver.checks import LengthLimits
from seer_sgl.errors import ConfigError
from seer_sgl.types import Prompt, token_array
from tests.support.infos import info


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


@pytest.mark.parametrize(("more", "is_context"), [(6, False), (8, False), (9, True)])
def test_a_context_bounds_a_response_and_a_small_cache_refuses_it(
    more: int, is_context: bool
) -> None:
    engine = msgspec.structs.replace(
        info("e0"), max_request_len=4000, max_total_num_tokens=4000 + more
    )
    limits = LengthLimits([engine])
    prompt = Prompt(prompt_id="p", prompt_ids=token_array(range(50)), n=1)
    assert limits.response_limit(prompt, 3950) == 3950
    if is_context:
        assert limits.response_limit(prompt, 3951) == 3950
        return
    with pytest.raises(ConfigError, match=f"do not fit into the KV cache.*{4000 + more} tokens"):
        limits.response_limit(prompt, 3951)
