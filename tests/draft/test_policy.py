"""The draft policy: wide if drafts are good and steps cheap, plain otherwise."""

import numpy as np
import pytest

from seer_sgl.draft.acceptance import Acceptance
from seer_sgl.draft.drafter import Drafts
from seer_sgl.draft.policy import EXPLORE_EVERY, MAX_PAUSE, MOST_EXPLORE, MOST_NODES, DraftPolicy
from seer_sgl.draft.steps import StepTimes
from tests.draft.drafts import drafts

WIDTHS = (1, 2, 3, 5, 9)


def policy(per_node: float) -> DraftPolicy:
    """Returns a policy whose step takes 1 ms, and `per_node` ms more per verified token."""
    times = {(b, w): 1e-3 * (1 + per_node * b * w) for b in (1, 64) for w in WIDTHS}
    return DraftPolicy(WIDTHS, StepTimes(times), Acceptance(8))


def chain(prob: float, length: int = 8) -> list[tuple[int, float]]:
    return [(k - 1, prob ** (k + 1)) for k in range(length)]


def chosen(policy: DraftPolicy, rows: Drafts) -> int:
    """Returns the width of the next step that looks at drafts."""
    while policy.resting():
        pass
    return policy.width(rows)


@pytest.mark.parametrize("prob", [0.1, 0.3, 0.5, 0.8, 0.95, 0.99])
@pytest.mark.parametrize("rows", [1, 4, 64])
def test_it_is_the_best_of_all_widths_by_expected_tokens_a_second(prob: float, rows: int) -> None:
    found = []
    for cost in (0.001, 0.01, 0.1, 0.4, 2.0):
        rate = {w: sum(prob**k for k in range(w)) / (1 + cost * rows * w) for w in WIDTHS}
        found.append(chosen(policy(cost), drafts([chain(prob)] * rows)))
        assert rate[found[-1]] == pytest.approx(max(rate.values()), rel=0.051)
    assert found == sorted(found, reverse=True), "the dearer a node, the narrower"


def test_however_good_the_drafts_a_verification_is_no_larger_than_memory_allows() -> None:
    tried = policy(1e-6)
    widths = {chosen(tried, drafts([chain(0.99)] * 300)) for _ in range(2 * EXPLORE_EVERY)}
    assert max(widths) == 5
    assert MOST_NODES < 300 * 9


def test_while_drafts_do_not_pay_it_looks_at_them_ever_more_rarely_and_comes_back_at_once() -> None:
    tried = policy(2.0)
    pauses = []
    for _ in range(6):
        assert tried.width(drafts([chain(0.1)])) == 1
        pause = 0
        while tried.resting():
            pause += 1
        pauses.append(pause)
    assert pauses == [1, 2, 4, 8, 16, MAX_PAUSE]
    tried = policy(0.01)
    assert tried.width(drafts([chain(0.01)])) == 1
    assert tried.resting()
    assert not tried.resting()
    assert tried.width(drafts([chain(0.99)])) == 9
    assert not tried.resting()


def test_now_and_then_a_neighbouring_width_is_tried() -> None:
    tried = policy(0.2)
    widths = [chosen(tried, drafts([chain(0.8)] * 2)) for _ in range(EXPLORE_EVERY)]
    assert len(set(widths[:-1])) == 1
    best = WIDTHS.index(widths[0])
    assert widths[-1] == WIDTHS[best + 1]


def test_where_drafts_do_not_pay_a_width_is_tried_ever_more_rarely() -> None:
    tried, at = policy(2.0), []
    for step in range(4 * MOST_EXPLORE):
        if not tried.resting() and (width := tried.width(drafts([chain(0.1)]))) > 1:
            at.append(step)
            assert not tried.resting(), "the next step looks at drafts: only so a time is learned"
            tried.times.observe(1, width, tried.times.predict(1, width))
            tried.width(drafts([chain(0.1)]))
    gaps = np.diff(at)
    assert len(gaps) >= 4
    assert all(gap <= MOST_EXPLORE + MAX_PAUSE for gap in gaps)
    assert gaps.tolist() == sorted(gaps)
    assert gaps[-1] > 8 * gaps[0]


def test_no_width_is_tried_that_no_draft_needs() -> None:
    tried = policy(0.001)
    widths = {chosen(tried, drafts([chain(0.9, 3)] * 4)) for _ in range(4 * EXPLORE_EVERY)}
    assert widths == {3, 5}, "5 holds the root and three drafts"
