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
    ("backend", "sglang", "ratio", "context", "left"),
    [
        ("file", {}, 1.5, 8000, None),  # room for 4000 tokens
        ("file", {}, 1.1, 8000, 800),
        ("file", BUFFER, 0.5, 8000, None),
        ("file", BUFFER, 0.1, 8000, 800),
        ("file", BUFFER, 0.1, 800, None),  # the context ends a response
        ("none", {}, 1.1, 8000, None),
    ],
)
def test_host_memory_holds_copies_unless_sglang_keeps_none(
    backend: str, sglang: dict[str, Any], ratio: float, context: int, left: int | None
) -> None:
    engine = msgspec.structs.replace(info("e0"), max_total_num_tokens=8000, max_request_len=context)
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
    if left is None:
        assert warnings == []
    else:
        (warning,) = warnings
        found = (
            f"engine e0 has host memory to fetch {left} KV tokens, but a response may have 3000;"
        )
        assert found in warning
