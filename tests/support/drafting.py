"""Reports of drafting by engines and by the hub."""

from typing import Any


def engine(rows: int, instance: str = "i", **changes: Any) -> dict[str, Any]:
    """The counters of an engine that verified `rows` rows: width 3, two tokens, one draft each."""
    return {
        "instance": instance,
        "draft_tokens": 40,
        "steps": {"1": 10 + rows, "3": rows},
        "verified_rows": rows,
        "verified_tokens": 2 * rows,
        "draft_s": 0.25 * rows,
        "sources": {"here": rows, "elsewhere": 3 * rows},
        "drafted_by_position": [rows, rows, 0],
        "accepted_by_position": [rows, 0, 0],
        "index": {"tokens": 7, "bytes": 700},
        "replica": {
            "groups": 1,
            "tokens": 7,
            "received_tokens": 5 * rows,
            "refused_tokens": 0,
            "lost_messages": 0,
            "waits": {"count": rows, "sum_s": 0.5 * rows, "max_s": 2.0},
        },
        **changes,
    }


def hub(tokens: int, instance: str = "h") -> dict[str, Any]:
    return {
        "instance": instance,
        "groups": 0,
        "groups_begun": tokens // 10,
        "tokens": 0,
        "tokens_in": tokens,
        "tokens_out": 2 * tokens,
        "refused": 0,
        "lag": {"count": tokens, "sum_s": 0.01 * tokens, "max_s": 0.3},
    }
