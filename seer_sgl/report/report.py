"""The report of a rollout: one JSON object, computed from the recorder's data."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from seer_sgl.driver.health import State

from .recorder import EngineRecord, Recorder

Number = TypeVar("Number", int, float)
TAIL_SHARE = 0.1  # the paper's tail: the last 10 % of requests to finish


def before_tail(requests: int) -> int:
    """Returns how many of the requests are finished when their tail begins."""
    return max(1, math.ceil(requests * (1 - TAIL_SHARE)))


def tail_begin(finished_at: Sequence[float], requests: int | None = None) -> float:
    """Returns the time in seconds when only the last 10 % of the requests were unfinished.

    `finished_at`: ascending, seconds; `requests`: that are to finish, None: no more than these.
    The last of them, if the rollout has ended before its tail.
    """
    if not finished_at:
        return 0.0
    needed = before_tail(len(finished_at) if requests is None else requests)
    return finished_at[min(needed, len(finished_at)) - 1]


def report(record: Recorder) -> dict[str, Any]:
    """Returns the report of a rollout. docs/report.md explains its keys."""
    ends = record.finished_at
    wall_s = ends[-1] if ends else 0.0
    lengths = sorted(record.response_lens)
    totals = record.totals
    return {
        "rollout_id": record.rollout_id,
        "seed": record.seed,
        "groups": record.finished_groups,
        "unfinished_groups": record.groups - record.finished_groups,
        "samples": len(ends),
        "response_tokens": sum(lengths),
        "wall_s": round(wall_s, 3),
        "throughput_tok_s": round(sum(lengths) / wall_s, 1) if wall_s else 0.0,
        "tail_s": round(wall_s - tail_begin(ends, record.awaited), 3),
        "chunks": totals.chunks,
        "lost_chunks": sum(engine.lost_chunks for engine in record.engines.values()),
        "retries": record.retries,
        "failed_requests": record.failed_requests,
        "wasted_tokens": record.wasted_tokens,
        "respawns": sum(map(_respawns, record.engines.values())),
        "migrations": totals.migrations,
        "fetches": totals.fetches,
        "planned_fetches": totals.planned_fetches,
        "moved_bytes": totals.moved_bytes,
        "store_latency_ms": {
            "p50": round(1e3 * quantile(sorted(record.store_s), 0.5), 1),
            "p99": round(1e3 * quantile(sorted(record.store_s), 0.99), 1),
        },
        "unstored_chunks": record.unstored,
        "cached_tokens": {
            "device": totals.device,
            "host": totals.host,
            "storage": totals.storage,
        },
        "recomputed_tokens": totals.recomputed,
        "kv_wait_s": round(sum(engine.kv_wait_s for engine in record.engines.values()), 3),
        "retractions": totals.retractions,
        "accept_length": None if totals.accept_length is None else round(totals.accept_length, 3),
        "finish_reasons": dict(record.finish_reasons),
        "response_length": {
            "mean": round(sum(lengths) / len(lengths), 1) if lengths else 0.0,
            "median": quantile(lengths, 0.5),
            "p99": quantile(lengths, 0.99),
            "max": lengths[-1] if lengths else 0,
        },
        "drafting": record.drafting,
        "processes": record.processes,
        "resumed": record.resumed,
        "engines": [_engine(engine, wall_s, record.begun_s) for engine in record.engines.values()],
    }


def quantile(ordered: Sequence[Number], share: float) -> Number | int:
    """Returns the nearest-rank quantile of an ascending sequence; 0 if it is empty."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0


def _engine(engine: EngineRecord, wall_s: float, begun_s: float) -> dict[str, Any]:
    info, own_s = engine.info, max(0.0, wall_s - begun_s)
    return {
        "engine_id": info.engine_id,
        "url": info.url,
        "sglang_version": info.sglang_version,
        "plugin": info.plugin,
        "off": dict(info.off),
        "weight_version": info.weight_version,
        "weights": info.weights,
        "chunks": engine.totals.chunks,
        "lost_chunks": engine.lost_chunks,
        "bad_replies": engine.bad_replies,
        "response_tokens": engine.totals.tokens,
        "throughput_tok_s": _throughput(engine, wall_s, begun_s),
        "retractions": engine.totals.retractions,
        "kv_capacity": info.max_total_num_tokens,
        "kv_peak": round(max(engine.used_tokens, default=0) / info.max_total_num_tokens, 4),
        "idle_share": round(1 - _busy_s(engine, wall_s) / own_s, 4) if own_s else 0.0,
        "mean_inflight": round(_mean_inflight(engine, wall_s, own_s), 2),
        "max_inflight": max(engine.inflight_count, default=0),
        "mean_running": _mean(engine.running),
        "mean_queued": _mean(engine.queued),
        "kv_wait_s": round(engine.kv_wait_s, 3),
        "states": [
            {"at_s": round(max(0.0, at), 3), "state": state.value, "why": why}
            for at, state, why in engine.states
        ],
    }


def _respawns(engine: EngineRecord) -> int:
    return sum(state is State.STARTING for _, state, _ in engine.states)


def _mean(counts: Sequence[int]) -> float:
    """Returns the mean over all polls, which are equally far apart."""
    return round(sum(counts) / len(counts), 2) if counts else 0.0


def _throughput(engine: EngineRecord, wall_s: float, begun_s: float) -> float:
    """Returns the tokens per second of an engine until the last sample, or its own last chunk."""
    until_s = max([wall_s, *engine.inflight_at[-1:]]) - begun_s
    return round(engine.totals.tokens / until_s, 1) if until_s > 0 else 0.0


def _busy_s(engine: EngineRecord, wall_s: float) -> float:
    """Returns the seconds during which the engine had a chunk in flight."""
    spans = zip(_spans(engine, wall_s), engine.inflight_count, strict=True)
    return sum(end - begin for (begin, end), count in spans if count)


def _mean_inflight(engine: EngineRecord, wall_s: float, own_s: float) -> float:
    if not own_s:
        return 0.0
    spans = zip(_spans(engine, wall_s), engine.inflight_count, strict=True)
    return sum((end - begin) * count for (begin, end), count in spans) / own_s


def _spans(engine: EngineRecord, wall_s: float) -> Iterable[tuple[float, float]]:
    """Returns begin and end of each count of chunks in flight, until `wall_s`.

    After the last sample there are chunks in flight of requests that failed or were given up.
    """
    begins = [min(at, wall_s) for at in engine.inflight_at]
    return zip(begins, [*begins[1:], wall_s], strict=True) if begins else ()
