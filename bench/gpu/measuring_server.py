"""A drafting engine that measures its forward passes at several contexts while it starts.

bench.gpu.step_times starts this module instead of `seer_sgl.plugin.server`. Everything at module
level runs again in the spawned scheduler process, which measures. Unlike the measurement of the
plugin, each request reads KV of its own here: one page for all would stay in the GPU's cache.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seer_sgl.plugin import server  # first: it makes SGLang importable without a GPU
from seer_sgl.plugin.speculation import profile

from .machine import write_json
from .step_times import CONTEXTS, ROWS

_step_seconds, _dummy = profile.step_seconds, profile._dummy


def step_seconds(runner: Any, shapes: Any, widths: Sequence[int]) -> dict[tuple[int, int], float]:
    """Writes a row per context, batch and width. Returns the times at the shortest context.

    Stands in for `profile.step_seconds`. Contexts that the model does not allow are left out.
    """
    longest = runner.model_config.context_len - widths[-1]
    contexts = sorted(map(int, os.environ[CONTEXTS].split(",")))
    rows, by_context = [], []
    for context in (context for context in contexts if context <= longest):
        profile.CONTEXT = context
        times = _step_seconds(runner, shapes, widths)
        by_context.append(times)
        for (batch, width), seconds in times.items():
            ms = round(1e3 * seconds, 4)
            rows.append({"context": context, "batch": batch, "width": width, "ms": ms})
    runner.req_to_token_pool.req_to_token.zero_()
    write_json(Path(os.environ[ROWS]), rows)
    return by_context[0]


def dummy(runner: Any, batch: int, width: int, verifies: bool) -> Any:
    """Returns the plugin's batch, with KV of its own for each request as far as there is KV.

    Stands in for `profile._dummy`. Rows and slots 0 are SGLang's padding.
    """
    import torch

    forward_batch = _dummy(runner, batch, width, verifies)
    table, context = runner.req_to_token_pool.req_to_token, profile.CONTEXT
    slots = torch.arange(batch * context, device=table.device) % (runner.max_total_num_tokens - 1)
    table[1 : batch + 1, :context] = (slots + 1).view(batch, context).to(table.dtype)
    forward_batch.req_pool_indices = torch.arange(1, batch + 1, device=table.device)
    return forward_batch


profile.step_seconds, profile._dummy = step_seconds, dummy

if __name__ == "__main__":
    server.main(sys.argv[1:])
