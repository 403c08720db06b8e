"""What `GET /rollout/{id}` and `GET /rollouts` return."""

import itertools
from typing import Any

from seer_sgl.types import RequestState

from .rollout_served import ServedRollout, clock

MOST_TAIL = 64  # unfinished requests that are listed


def summary(served: ServedRollout) -> dict[str, Any]:
    """Returns a rollout's state and counts. Times in seconds."""
    tally = served.tally
    return {
        "rollout_id": served.rollout_id,
        "state": served.end or "running",
        "error": served.error,
        "seed": served.seed,
        "age_s": round(clock() - served.started_at, 3),
        "elapsed_s": round((served.ended_at or clock()) - served.started_at, 3),
        "target_groups": tally.target,
        "groups": {
            "total": tally.total,
            "waiting": served.waiting,
            "running": len(served.running),
            "complete": len(tally.complete),
            "failed": len(tally.failed),
            "delivered": served.delivered,
            "accepted": len(tally.accepted),
            "rejected": len(tally.rejected),
            "counted": len(tally.counted),
        },
        "samples": {"total": served.requests, "finished": served.finished_requests},
        "generated_tokens": served.totals.tokens,
    }


def progress(served: ServedRollout) -> dict[str, Any]:
    """Returns the summary with the tail, and with the report once the rollout has ended."""
    return {**summary(served), "tail": tail(served), "report": served.report}


def tail(served: ServedRollout) -> list[dict[str, Any]]:
    """Returns the unfinished requests, those with the most tokens first.

    `engine`: of the chunk in flight; None while it waits for one. `age_s`: since its first chunk.
    """
    unfinished = [
        request
        for group in served.running.values()
        for request in group.requests
        if request.state is not RequestState.FINISHED
    ]
    unfinished.sort(key=lambda request: (-request.generated, request.order))
    now, rows = clock(), []
    for request in itertools.islice(unfinished, MOST_TAIL):
        age_s = None if request.started_at is None else round(now - request.started_at, 3)
        rows.append(
            {
                "group_id": request.group.group_id,
                "index": request.index,
                "tokens": request.generated,
                "engine": served.run.engine_of(request),
                "chunks": len(request.engines),
                "age_s": age_s,
            }
        )
    return rows
