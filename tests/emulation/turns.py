"""Drafting that always verifies, at each width in turn, so that a short test runs all of them."""

from itertools import count

from seer_sgl.draft.policy import DraftPolicy


def install() -> None:
    """Replaces the choices of the draft policy."""
    turns = count()

    def width(policy: DraftPolicy, *_: object) -> int:
        drafted = policy.widths[1:]
        return drafted[next(turns) % len(drafted)]

    DraftPolicy.width = width  # type: ignore[method-assign, assignment]
    DraftPolicy.resting = lambda self: False  # type: ignore[method-assign]
