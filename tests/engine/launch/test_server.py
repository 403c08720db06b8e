"""The ranks of a server, whatever SGLang's flag is called."""

import pytest

from seer_sgl.config import FlagValue
from seer_sgl.engine.launch.rank_count import ranks
from seer_sgl.errors import ConfigError


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        ({}, 1),
        ({"tp-size": 8}, 8),
        ({"tensor-parallel-size": 2, "pp-size": 4}, 8),
        ({"tp": "2", "pipeline-parallel-size": 2}, 4),
        ({"tp-size": 4, "dp-size": 2}, 8),
        ({"tp-size": 4, "data-parallel-size": 2, "enable-dp-attention": True}, 4),
    ],
)
def test_a_server_has_a_rank_per_tensor_part_and_pipeline_stage_of_each_copy(
    flags: dict[str, FlagValue], count: int
) -> None:
    assert ranks(flags) == count


@pytest.mark.parametrize("size", ["two", 0, True, 1.5, [2]])
def test_a_number_of_ranks_that_cannot_be_is_named(size: FlagValue) -> None:
    for name in ("tp-size", "dp-size", "pp"):
        with pytest.raises(ConfigError, match=rf"engines\.sglang\.{name}: .* is not a number"):
            ranks({name: size})
