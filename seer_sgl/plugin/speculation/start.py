"""Prepares drafting once the target is loaded."""

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
from .shapes import Shapes

DEFAULT_MEMORY = 1 << 30  # bytes, for a server that was started with SGLang's flags alone


def widths(stride: int) -> list[int]:
    """Returns the widths of a verification: 1 (plain decoding), then 1 + 2, 1 + 4, ..., stride."""
    if stride == 1:
        return [1]
    most = stride - 1
    drafts = [1 << i for i in range(1, most.bit_length()) if 1 << i < most]
    return [1, *(1 + count for count in drafts), stride]


def planner(
    runner: SglModelRunner, shapes: Shapes, stride: int, status: drafting.DraftStatus
) -> Planner | None:
    """Returns this rank's Planner if the rank drafts. `stride`: nodes of the widest draft; 1, the
    root alone: no rank drafts.

    status: reports the planner from now on.
    """
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode
    from sglang.srt.runtime_context import get_parallel

    settings = drafting.settings() or contract.DraftSettings(
        "engine", stride - 1, 4, DEFAULT_MEMORY
    )
    status.inexact = exactness.obstacle(runner, settings.paths if stride > 1 else 1)
    if stride == 1:
        return None
    verifier = abilities.verifier_of(runner)
    problem = abilities.obstacle(verifier)
    if problem is not None:
        raise ValueError(f"draft.scope: {problem}")
    times = profile.step_seconds(runner, shapes, widths(stride))
    vocab_size = runner.model_config.vocab_size
    if vocab_size > MAX_TOKEN + 1:
        raise ValueError(f"draft.scope: {vocab_size} tokens, the index takes {MAX_TOKEN + 1}")
    parallel = get_parallel()
    rank = parallel.pp_rank * parallel.tp_size + parallel.tp_rank
    ranks = parallel.tp_size * parallel.pp_size
    drafter = Drafter()
    replica = drafting.join(drafter, settings, rank, ranks, vocab_size)
    if replica is None:
        return None
    paths = settings.paths if abilities.verifies_trees(verifier) else 1
    policy = DraftPolicy(
        widths(stride), StepTimes(times), Acceptance(stride - 1), shapes.most_nodes
    )
    result = Planner(drafter, replica, paths, policy)
    reserve = get_alloc_reserve_per_decode()
    forward = [[batch, width, 1e3 * s] for (batch, width), s in times.items()]
    constant = {"draft_tokens": reserve, "paths": paths, "forward_ms": forward}
    status.begin(lambda: {**constant, **result.facts()})
    return result
