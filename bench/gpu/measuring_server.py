"""A drafting engine that measures its steps at several contexts while it starts.

bench.gpu.step_times starts this module instead of `seer_sgl.plugin.server`. Everything at module
level runs again in the spawned scheduler process, which measures. A context longer than a request's
share of the KV cache reads some KV twice.
"""

import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seer_sgl.plugin import server  # first: it makes SGLang importable without a GPU
from seer_sgl.plugin.speculation import profile

from .machine import write_json
from .step_times import CONTEXTS, ROWS

_step_seconds = profile.step_seconds


def step_seconds(runner: Any, shapes: Any, widths: Sequence[int]) -> dict[tuple[int, int], float]:
    """Writes a row per context, batch and width. Returns the times at the shortest context.

    Stands in for `profile.step_seconds`. Contexts that the model does not allow are left out.
    """
    longest = runner.model_config.context_len - widths[-1]
    contexts = sorted(map(int, os.environ[CONTEXTS].split(",")))
    rows, by_context = [], []
    for context in (context for context in contexts if context <= longest):
        profile.context_length = functools.partial(fixed, context)
        times = _step_seconds(runner, shapes, widths)
        by_context.append(times)
        for (batch, width), seconds in times.items():
            ms = round(1e3 * seconds, 4)
            rows.append({"context": context, "batch": batch, "width": width, "ms": ms})
    write_json(Path(os.environ[ROWS]), rows)
    return by_context[0]


def fixed(context: int, _runner: Any, _batch: int) -> int:
    """Stands in for `profile.context_length`."""
    return context


profile.step_seconds = step_seconds

if __name__ == "__main__":
    server.main(sys.argv[1:])
