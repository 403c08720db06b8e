"""Requests of which the metrics are known, and a plugin's counters."""

from typing import Any

LIMIT = 40
LONG = 900 << 7  # the seed of a response that is longer than any limit here


def body(number: int, **more: Any) -> dict[str, Any]:
    params = {"max_new_tokens": LIMIT, "sampling_seed": LONG + number, **more.pop("params", {})}
    return {"input_ids": [5, 6, 7], "sampling_params": params, **more}


def counters(verified: int) -> dict[str, Any]:
    """Returns a plugin's report of an engine that drafts."""
    draft = {
        "draft_tokens": 4,
        "verified_rows": verified,
        "verified_tokens": 3 * verified,
        "drafted_by_position": [verified, verified],
        "accepted_by_position": [verified, 0],
        "draft_s": 0.5,
    }
    return {"version": "1", "missing": [], "instance": "i", "draft": draft}
