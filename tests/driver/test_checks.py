"""What a response may have on stock engines that read images."""

import msgspec
import pytest

from seer_sgl.driver.checks import LengthLimits
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
