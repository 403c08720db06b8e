"""The collective of ring attention, which needs the real flash-attn: every call raises."""

from typing import NoReturn


def all_gather(*_: object, **__: object) -> NoReturn:
    """Raises: `--ds.ring_attn_size` above 1 needs flash-attn."""
    raise RuntimeError("flash-attn is not installed: leave --ds.ring_attn_size out")
