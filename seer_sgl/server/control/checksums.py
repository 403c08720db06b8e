"""Compares the engines' weights by SGLang's checksums. Pure."""

from collections import Counter
from collections.abc import Collection
from typing import Any

from seer_sgl.backend.bodies import Ranks
from seer_sgl.backend.replies import CallResult, Replies, failures

from .answers import combined

CHECKSUM = "per_engine_checksum"


def compared(replies: Replies, ranks: Ranks, stale: Collection[str]) -> tuple[int, dict[str, Any]]:
    """Returns the answer of `weights_checker`: whether all engines have the same weights.

    Engines of another number of ranks have other checksums of the same weights: they are compared
    with one another. Stale engines serve nothing and are left out.
    """
    failed = failures({name: reply for name, reply in replies.items() if name not in stale})
    sums: dict[int, dict[str, str]] = {}
    for name, reply in replies.items():
        found = reply.reply.get(CHECKSUM) if reply.ok and isinstance(reply.reply, dict) else None
        if isinstance(found, str) and name not in stale:
            sums.setdefault(ranks.get(name, 1), {})[name] = found
    different = [line for group in sums.values() for line in _different(group)]
    everything = [
        rank
        for reply in replies.values()
        if reply.ok and isinstance(reply.reply, dict)
        for rank in _list(reply.reply.get("ranks"))
    ]
    status, answer = combined(CallResult(replies, failed))
    if everything:
        answer["ranks"] = everything
    if different:
        answer.pop(CHECKSUM, None)
        answer["success"], answer["message"] = False, "; ".join(different)
        status = max(status, 400)
    return status, answer


def _different(sums: dict[str, str]) -> list[str]:
    """Returns a line per engine whose checksum is not the most frequent one."""
    usual, _ = Counter(sums.values()).most_common(1)[0]
    like = next(name for name, value in sums.items() if value == usual)
    return [
        f"engine {name} has other weights than engine {like}: {value}, not {usual}"
        for name, value in sums.items()
        if value != usual
    ]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
