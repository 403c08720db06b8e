"""Acceptance: the index's probabilities, corrected by the target's accepted tokens."""

import numpy as np
import pytest

from seer_sgl.draft.acceptance import Acceptance
from seer_sgl.draft.tree import Accepted
from tests.draft.drafts import drafts


def accepted(*paths: list[int], width: int = 9) -> Accepted:
    nodes = np.full((len(paths), width), -1, np.int32)
    for i, path in enumerate(paths):
        nodes[i, : len(path)] = path
    return Accepted(nodes, np.array([len(path) for path in paths], np.int32))


CHAIN = [(-1, 0.8), (0, 0.6), (1, 0.3)]
TREE = [(-1, 0.5), (-1, 0.4), (0, 0.25), (1, 0.2)]


def test_at_first_the_index_is_believed() -> None:
    expected = Acceptance(8).expected(drafts([CHAIN, [(-1, 0.5)]]))
    assert expected == pytest.approx(np.array([[0.8, 0.6, 0.3], [0.5, 0.0, 0.0]]))
    assert Acceptance(8).expected(drafts([TREE])) == pytest.approx(
        np.array([[0.5, 0.4, 0.25, 0.2]])
    )


def test_a_class_that_keeps_less_than_it_promises_is_expected_to_keep_less() -> None:
    acceptance = Acceptance(8)
    for _ in range(2000):
        acceptance.observe(drafts([CHAIN]), accepted([0]), 9)
    first, second, _ = acceptance.expected(drafts([CHAIN]))[0]
    assert first < 0.05
    assert second == pytest.approx(first * 0.75), "never tried: its own share has no correction yet"
    assert acceptance.expected(drafts([CHAIN], match=1))[0][0] == pytest.approx(0.8)


def test_only_drafts_whose_parent_was_accepted_are_tried() -> None:
    acceptance = Acceptance(8)
    acceptance.observe(drafts([TREE]), accepted([0, 2, 4]), 9)  # the second child, and its child
    assert acceptance.tally.tried[1:4].tolist() == [2, 1, 0]
    assert acceptance.tally.accepted[1:4].tolist() == [1, 1, 0]
    acceptance.observe(drafts([CHAIN]), accepted([0, 1]), 2)  # nodes beyond the width were not sent
    assert acceptance.tally.tried[1:4].tolist() == [3, 1, 0]
    assert acceptance.tally.accepted[1:4].tolist() == [2, 1, 0]


def test_what_was_written_teaches_the_same_and_is_not_counted() -> None:
    verified, written = Acceptance(8), Acceptance(8)
    for path in ([0, 2, 4], [0], [0, 1]):
        verified.observe(drafts([TREE]), accepted(path), 9)
        written.observe(drafts([TREE]), accepted(path), 9, verified=False)
    assert (verified.expected(drafts([TREE])) == written.expected(drafts([TREE]))).all()
    assert verified.tally.tried.any()
    assert not written.tally.tried.any()
    assert not written.tally.accepted.any()


def test_experience_fades() -> None:
    acceptance = Acceptance(8)
    for _ in range(5000):
        acceptance.observe(drafts([CHAIN]), accepted([0]), 9)
    for _ in range(5000):
        acceptance.observe(drafts([CHAIN]), accepted([0, 1, 2, 3]), 9)
    assert acceptance.expected(drafts([CHAIN]))[0][0] > 0.9


def test_one_draft_token_does_not_decide_on_a_class_long_not_seen() -> None:
    acceptance, rare = Acceptance(8), drafts([CHAIN], match=40)
    for _ in range(400):
        acceptance.observe(drafts([CHAIN] * 100), accepted(*[[0, 1, 2, 3]] * 100), 9)
    acceptance.observe(rare, accepted([0]), 9)
    assert 0.2 < acceptance.expected(rare)[0][0] < 0.8
    acceptance.observe(rare, accepted([0]), 9)
    assert acceptance.expected(rare)[0][0] < 0.4, "but a few do"
