"""Getting ready to draft, once the target is loaded."""

from typing import Any

from seer_sgl.draft.drafter import Drafter
from seer_sgl.draft.replica import Replica
from seer_sgl.draft.steps import StepTimes

from . import measure, ranks
from .drafting import Drafting
from .settings import settings
from .shapes import Shapes

_drafting: Drafting | None = None


def widths(stride: int) -> list[int]:
    """Of a verification: 1 is plain decoding; then the last token and 2, 4, 8, ... drafts."""
    most = stride - 1
    drafts = [1 << i for i in range(1, most.bit_length()) if 1 << i < most]
    return [1, *(1 + count for count in drafts), stride]


def drafting(runner: Any, shapes: Shapes, stride: int) -> Drafting | None:
    """The engine's Drafting, on the rank that drafts. `stride`: nodes of the widest verification."""
    global _drafting  # noqa: PLW0603 (one a process; `facts` reads it)
    times = measure.step_seconds(runner, shapes, widths(stride))
    if not ranks.drafts_here():
        return None
    wanted = settings()
    drafter = Drafter()
    replica = Replica(
        drafter, None, max_tokens=wanted.max_tokens, scope=wanted.scope,
        vocab_size=runner.model_config.vocab_size,
    )
    _drafting = Drafting(drafter, replica, widths(stride), wanted.paths, StepTimes(times))
    return _drafting


def facts() -> dict[str, Any] | None:
    """What the plugin says of drafting in `/server_info`; None without it."""
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode

    if _drafting is None:
        return None
    return {"draft_tokens": get_alloc_reserve_per_decode(), **_drafting.facts()}
