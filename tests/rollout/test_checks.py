"""Warnings of a rollout about host memory: what is left for fetched KV."""

from typing import Any

import msgspec
import pytest

from seer_sgl.config import with_values
from seer_sgl.config.tree import Config
from seer_sgl.rollout.checks import warnings_of_fetches
from tests.support.infos import info

BUFFER = {"hicache_host_memory_mode": "buffer_only"}


@pytest.mark.parametrize(
    ("backend", "sglang", "ratio", "left"),
    [
        ("file", {}, 1.5, 4000),
        ("file", {}, 1.1, 800),
        ("file", BUFFER, 0.5, 4000),
        ("file", BUFFER, 0.1, 800),
        ("none", {}, 1.1, None),
    ],
)
def test_host_memory_holds_copies_unless_sglang_keeps_none(
    backend: str, sglang: dict[str, Any], ratio: float, left: int | None
) -> None:
    engine = msgspec.structs.replace(info("e0"), max_total_num_tokens=8000, max_request_len=8000)
    config = with_values(
        Config(),
        {
            "engines.sglang": sglang,
            "kv_pool.backend": backend,
            "kv_pool.host_ratio": ratio,
            "sampling.max_new_tokens": 3000,
        },
    )
    warnings = list(warnings_of_fetches(config, [engine]))
    if left is None or left >= 3000:
        assert warnings == []
    else:
        (warning,) = warnings
        assert f"host memory to fetch {left} KV tokens" in warning
