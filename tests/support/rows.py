"""Rows of a benchmark."""

from typing import Any

from bench.full.soak import SoakRow
from seer_sgl.benchmark.measure import Row


def row(arm: str, number: int, **changed: Any) -> Row:
    figures: dict[str, Any] = {
        "seed": 1,
        "samples": 8,
        "response_tokens": 800,
        "wall_s": 10.0,
        "throughput_tok_s": 80.0,
        "tail_s": 4.0,
        "idle": [0.0, 0.4],
        "retractions": 3,
        "chunks": 8,
        "migrations": 0,
        "fetches": 0,
        "recomputed_tokens": 0,
        "moved_bytes": 0,
        "kv_peak": 0.9,
        "accept_length": None,
        "drafting_cpu_s": None,
        "forward_steps": 700,
        "prefilled_tokens": 900,
        "engine_cpu_s": 18.0,
        "other_cpu_s": 0.0,
        "driver_cpu_s": 0.1,
        "identical_share": 1.0,
    }
    return Row(arm=arm, round=number, **(figures | changed))


def soak_row(number: int, **changed: Any) -> SoakRow:
    figures: dict[str, Any] = {
        "wall_s": 20.0,
        "throughput_tok_s": 100.0,
        "retractions": 0,
        "migrations": 5,
        "fetches": 5,
        "recomputed_tokens": 10,
        "storage_tokens": 500,
        "kv_hit_share": 0.9,
        "accept_length": 1.5,
        "identical_share": 1.0,
        "driver_mb": 900.0,
        "engines_mb": 20000.0,
        "others_mb": 1000.0,
    }
    return SoakRow(number=number, **(figures | changed))
