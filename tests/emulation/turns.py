"""Drafting that verifies at each width in turn, so that a short test runs all of them, and then
decodes some steps plainly, so that it runs the changes between both."""

from itertools import count

from seer_sgl.draft.policy import DraftPolicy

DRAFTED, PLAIN = 4, 3  # steps


def install() -> None:
    """Replaces the choices of the draft policy."""
    turns, steps = count(), count()

    def width(policy: DraftPolicy, *_: object) -> int:
        drafted = policy.widths[1:]
        return drafted[next(turns) % len(drafted)]

    DraftPolicy.width = width  # type: ignore[method-assign, assignment]
    DraftPolicy.resting = (  # type: ignore[method-assign]
        lambda self: next(steps) % (DRAFTED + PLAIN) >= DRAFTED
    )
