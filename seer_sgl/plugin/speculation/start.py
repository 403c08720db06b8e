"""Prepares drafting once the target is loaded."""

import logging
from collections.abc import Sequence

from seer_sgl.draft.acceptance import Acceptance
from seer_sgl.draft.automaton import MAX_TOKEN
from seer_sgl.draft.drafter import Drafter
from seer_sgl.draft.policy import DraftPolicy
from seer_sgl.draft.steps import StepTimes
from seer_sgl.link import contract
from seer_sgl.plugin import drafting
from seer_sgl.plugin.sglang_types import SglModelRunner

from . import abilities, exactness, profile
from .planner import Planner
from .shapes import Shapes, on_gpu

logger = logging.getLogger(__name__)

DEFAULT_MEMORY = 1 << 30  # bytes, for a server that was started with SGLang's flags alone
CPU_PATHS, GPU_PATHS = 4, 1  # continuations per node, unless `draft.paths` is set
FIRST_PLAIN = 8  # overlapped steps without drafts at first, which show the time of a plain step


def exact(runner: SglModelRunner, stride: int) -> bool:
    """Returns whether plain steps must be verifications to round like them. `stride`: nodes of the
    widest draft; 1, the root alone, has no other use."""
    settings = drafting.settings()
    wanted = stride == 1 or (settings is not None and settings.exact)
    return wanted and exactness.needs_verifications(runner)


def planner(
    runner: SglModelRunner,
    shapes: Shapes,
    widths: Sequence[int],
    status: drafting.DraftStatus,
    *,
    overlaps: bool,
) -> Planner | None:
    """Returns this rank's Planner if the rank drafts. `widths`: ascending; the root alone: no rank
    drafts.

    status: reports the planner from now on. overlaps: see DraftPolicy.
    """
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
    from sglang.srt.runtime_context import get_parallel

    stride = widths[-1]
    settings = drafting.settings() or contract.DraftSettings(
        "engine", stride - 1, None, DEFAULT_MEMORY
    )
    paths = settings.paths or (GPU_PATHS if on_gpu(runner) else CPU_PATHS)
    status.decodes = shapes.plain_decodes
    if stride == 1:
        return None
    verifier = abilities.verifier_of(runner)
    if not abilities.verifies_trees(verifier):
        paths = 1
    status.paths = paths
    problem = abilities.obstacle(verifier)
    if problem is not None:
        raise ValueError(f"draft.scope: {problem}")
    times = profile.step_seconds(runner, shapes, widths)
    logger.info("seer-sgl: %s", profile.described(times))
    vocab_size = runner.model_config.vocab_size
    if vocab_size > MAX_TOKEN + 1:
        raise ValueError(f"draft.scope: {vocab_size} tokens, the index takes {MAX_TOKEN + 1}")
    parallel, drafter = get_parallel(), Drafter()
    replica = drafting.join(drafter, settings, parallel.tp_rank, parallel.tp_size, vocab_size)
    if replica is None:
        return None
    policy = DraftPolicy(
        widths,
        StepTimes(times),
        Acceptance(stride - 1),
        shapes.most_nodes,
        pause=FIRST_PLAIN if overlaps else 0,
        overlaps=overlaps,
    )
    result = Planner(drafter, replica, paths, policy)
    reserve = get_alloc_reserve_per_decode()
    forward = [[batch, width, 1e3 * s] for (batch, width), s in times.items()]
    constant = {"draft_tokens": reserve, "paths": paths, "forward_ms": forward}
    status.report = lambda: {**constant, **result.facts()}
    return result
