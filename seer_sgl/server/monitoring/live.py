"""The data of the live page: bounded, whatever the number of requests, groups and engines."""

from itertools import islice
from typing import Any

from seer_sgl.types import Request

from .counts import GroupInProgress
from .snapshot import EngineSnapshot, Snapshot
from .tails import RolloutProgress

MOST_ENGINES = 256
MOST_GROUPS = 12
MOST_TAIL = 12
MOST_ROLLOUTS = 12
MOST_CHARACTERS = 64  # of a text that a client chose


def live(snapshot: Snapshot, first_cell: int) -> dict[str, Any]:
    """Returns what the page shows. `first_cell`: where its lanes begin (`FleetHistory.since`)."""
    counts, now = snapshot.counts, snapshot.now
    engines = snapshot.engines[:MOST_ENGINES]
    rate = counts.rate()
    pending = counts.pending
    drafted = snapshot.drafts.drafted
    return {
        "uptime_s": round(counts.elapsed_s, 1),
        "paused": snapshot.paused,
        "rate": None if rate is None else round(rate, 1),
        "tokens": counts.totals.tokens,
        "requests": {
            "pending": pending,
            "running": len(counts.unfinished) - pending,
            "ended": sum(counts.ends.values()),
            "failed": sum(counts.ends[reason] for reason in ("refused", "lost", "killed")),
        },
        "oldest_s": round(counts.oldest_s(), 1),
        "tail_s": round(counts.tails.longest_s(now), 1),
        "drafts": counts.drafts,
        "accept_length": _rounded(counts.totals.accept_length),
        "accepted_share": _rounded(snapshot.drafts.accepted / drafted if drafted else None),
        "pooled": counts.pooled,
        "migrations": counts.totals.migrations,
        "fetched_tokens": counts.totals.storage,
        "recomputed_tokens": counts.totals.recomputed,
        "retractions": counts.totals.retractions,
        "errors": sum(counts.errors.values()),
        "passthrough": sum(snapshot.passthrough.values()),
        "open_groups": snapshot.open_groups,
        "sessions": snapshot.sessions,
        "engines": [_engine(engine) for engine in engines],
        "hidden_engines": len(snapshot.engines) - len(engines),
        "groups": [_group(group) for group in islice(counts.groups.values(), MOST_GROUPS)],
        "groups_in_progress": len(counts.groups),
        "tail": [
            _request(request, snapshot) for request in islice(counts.started.values(), MOST_TAIL)
        ],
        "rollouts": [
            _rollout(rollout, snapshot)
            for rollout in islice(counts.tails.rollouts.values(), MOST_ROLLOUTS)
        ],
        "lanes": counts.history.since(
            first_cell, now, [engine.info.engine_id for engine in engines]
        ),
    }


def _engine(engine: EngineSnapshot) -> dict[str, Any]:
    info, state, counts = engine.info, engine.state, engine.counts
    if state.leaving:
        condition = "leaving"
    elif state.stale is not None:
        condition = "stale"
    else:
        condition = "serving" if state.available else "out"
    return {
        "id": info.engine_id,
        "state": condition,
        "why": _clipped(state.stale or "", 200),
        "running": counts.load.running,
        "queued": counts.load.queued,
        "kv_waiting": counts.load.kv_waiting,
        "inflight": state.inflight,
        "kv_used": counts.load.used_tokens,
        "kv_capacity": info.max_total_num_tokens,
        "tokens": counts.totals.tokens,
        "weight_version": _clipped(info.weight_version),
    }


def _rollout(progress: RolloutProgress, snapshot: Snapshot) -> dict[str, Any]:
    served = snapshot.rollouts.get(progress.caller)  # None: a program's own, in this process
    return {
        "name": _clipped(progress.name if served is None else served.rollout_id),
        "requests": progress.submitted if served is None else served.requests,
        "finished": len(progress.finished),
        "tail_s": round(progress.tail_s(snapshot.now), 1),
    }


def _group(entry: GroupInProgress) -> dict[str, Any]:
    group = entry.group
    return {
        "group": _clipped(group.group_id),
        "caller": _clipped(group.caller),
        "requests": len(group.requests),
        "finished": max(0, len(group.requests) - entry.unfinished),
        "tokens": sum(request.sampled for request in group.requests),
    }


def _request(request: Request, snapshot: Snapshot) -> dict[str, Any]:
    started_at = snapshot.now if request.started_at is None else request.started_at
    return {
        "group": _clipped(request.group.group_id),
        "index": request.index,
        "tokens": request.sampled,
        "limit": request.max_response_len - request.resumed_tokens,
        "engine": snapshot.counts.running.get(request.uid),
        "age_s": round(max(0.0, snapshot.now - started_at), 1),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _clipped(text: str, most: int = MOST_CHARACTERS) -> str:
    """Returns a client's text on one short line: other characters would disturb the page."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"
