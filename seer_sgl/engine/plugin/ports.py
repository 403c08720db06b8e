"""Ports that SGLang's libraries open on all interfaces, kept within this machine."""

from collections.abc import Callable
from typing import Any

from seer_sgl import loopback

_TRANSFER = "sglang.srt.distributed.device_communicators.mooncake_transfer_engine"
_MOONCAKE = "sglang.srt.mem_cache.storage.mooncake_store.mooncake_store.MooncakeStore"


def hooks() -> list[tuple[str, Callable[..., Any], str]]:
    """The hooks as (SGLang target, function, kind of hook)."""
    return [
        (f"{_TRANSFER}.init_mooncake_transfer_engine", confine, "after"),
        (f"{_MOONCAKE}.__init__", confine, "after"),
    ]


def confine(result: Any, *_: Any, **__: Any) -> Any:
    """After each of the two calls in which Mooncake opens ports. Raises OpenPortError."""
    loopback.confine_if_wanted()
    return result
