"""The metrics of each engine; an engine that leaves the fleet takes its series with it."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.metrics_core import Metric

from .series import Rows, counters, gauges
from .snapshot import EngineSnapshot

LABEL = ("engine",)
Value = Callable[[EngineSnapshot], float]
GAUGES: tuple[tuple[str, str, Value], ...] = (
    ("available", "1 if chunks are sent to the engine.", lambda e: e.state.available),
    (
        "stale",
        "1 if the engine missed a weight update and is out until the next one.",
        lambda e: e.state.stale is not None,
    ),
    ("inflight_chunks", "The server's chunks on the engine.", lambda e: e.state.inflight),
    (
        "running_requests",
        "Requests in the engine's batch, of all its clients.",
        lambda e: e.counts.load.running,
    ),
    (
        "queued_requests",
        "Requests that wait for room inside the engine, of all its clients.",
        lambda e: e.counts.load.queued,
    ),
    (
        "kv_waiting_requests",
        "Requests that wait inside the engine for KV from the pool, although there is room.",
        lambda e: e.counts.load.kv_waiting,
    ),
    ("kv_used_tokens", "KV in use.", lambda e: e.counts.load.used_tokens),
    ("kv_capacity_tokens", "KV capacity.", lambda e: e.info.max_total_num_tokens),
    (
        "kv_reserved_tokens",
        "KV that the server reserves for its chunks on the engine.",
        lambda e: e.state.promised_tokens or 0,
    ),
)
COUNTERS: tuple[tuple[str, str, Value], ...] = (
    ("chunks", "Chunks that came back with a reply.", lambda e: e.counts.totals.chunks),
    ("generated_tokens", "Response tokens.", lambda e: e.counts.totals.tokens),
    ("retractions", "Preemptions.", lambda e: e.counts.totals.retractions),
)


def engine_families(engines: Sequence[EngineSnapshot]) -> Iterator[Metric]:
    infos = [engine.info for engine in engines]
    yield gauges(
        "seer_engine_info",
        "1; the weights and the software of an engine.",
        (*LABEL, "weight_version", "sglang_version", "plugin"),
        [
            ((info.engine_id, info.weight_version, info.sglang_version, info.plugin or ""), 1)
            for info in infos
        ],
    )
    for name, text, value in GAUGES:
        yield gauges(f"seer_engine_{name}", text, LABEL, _rows(engines, value))
    for name, text, value in COUNTERS:
        yield counters(f"seer_engine_{name}", text, LABEL, _rows(engines, value))


def _rows(engines: Sequence[EngineSnapshot], value: Value) -> Rows:
    return [((engine.info.engine_id,), value(engine)) for engine in engines]
