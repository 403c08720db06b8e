"""The compiled search for trees returns what a plain one does, bit for bit."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.draft import step
from seer_sgl.draft.automaton import CHILDREN
from seer_sgl.draft.drafter import Drafter, Drafts
from seer_sgl.draft.proposals import SCANNED

from .indexes import arrays
from .plain import PlainTrees

Appends = list[tuple[int, list[int]]]
SEQUENCES = 4
NONE = np.zeros(0, np.int32)


def drafted(drafter: Drafter, slots: list[int], budgets: list[int], paths: int) -> Drafts:
    counts = np.zeros(len(slots), np.int32)
    return drafter.step(np.array(slots), NONE, counts, np.array(budgets, np.int32), paths)


def compare(
    drafter: Drafter, slots: list[int], budgets: list[int], paths: int, minimum: float
) -> tuple[int, int]:
    """Compares the drafts of all slots with plain ones. Returns the tokens and what was dropped."""
    drafts = drafted(drafter, slots, budgets, paths)
    plain = PlainTrees(arrays(drafter), paths, minimum)
    for row, (slot, budget) in enumerate(zip(slots, budgets, strict=True)):
        sequence = drafter._sequences.rows[drafter._slots.rows[slot, 0] - 1]
        tree = plain.draft(int(sequence[step.LAST]), budget)
        count = drafts.counts[row]
        assert drafts.tokens[row, :count].tolist() == [node.token for node in tree]
        assert drafts.parents[row, :count].tolist() == [node.parent for node in tree]
        assert drafts.probs[row, :count].tolist() == [node.prob for node in tree]
    return int(drafts.counts.sum()), plain.dropped


def grown(prompt: list[int], appends: Appends, minimum: float) -> tuple[Drafter, list[int]]:
    drafter = Drafter(min_probability=minimum)
    drafter.open("g", prompt)
    slots = [drafter.attach("g", number) for number in range(SEQUENCES)]
    for number, tokens in appends:
        drafter.append("g", number, tokens)
    return drafter, slots


@given(
    st.lists(st.integers(0, 2), max_size=6),
    st.lists(
        st.tuples(
            st.integers(0, SEQUENCES - 1), st.lists(st.integers(0, 2), min_size=1, max_size=40)
        ),
        max_size=12,
    ),
    st.integers(2, 8),
    st.lists(st.integers(0, 40), min_size=SEQUENCES, max_size=SEQUENCES),
    st.sampled_from([1e-6, 0.03, 0.1]),
)
def test_a_tree_is_that_of_the_plain_search(
    prompt: list[int], appends: Appends, paths: int, budgets: list[int], minimum: float
) -> None:
    drafter, slots = grown(prompt, appends, minimum)
    compare(drafter, slots, budgets, paths, minimum)


def test_a_tree_in_wide_forks_is_that_of_the_plain_search() -> None:
    """More next tokens than are read, and more open nodes than are kept."""
    dice = np.random.default_rng(1)
    tokens, dropped = 0, 0
    for minimum in (1e-6, 0.01, 0.05):
        weights = dice.dirichlet(np.full(40, 0.5))
        appends = [
            (number, dice.choice(40, 300, p=weights).tolist()) for number in range(SEQUENCES)
        ]
        drafter, slots = grown([1, 2, 3], appends, minimum)
        assert arrays(drafter).states[0, CHILDREN] > SCANNED
        for paths in (2, 4, 8):
            more = compare(drafter, slots, [40] * SEQUENCES, paths, minimum)
            tokens, dropped = tokens + more[0], dropped + more[1]
    assert tokens > 200 and dropped > 0
