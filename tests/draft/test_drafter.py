"""The index equals brute force on small alphabets, and drafts have the promised structure."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.draft import automaton
from seer_sgl.draft.drafter import Drafter, Drafts
from tests.draft.indexes import arrays, length

Texts = dict[int, list[int]]
APPEND = st.tuples(st.integers(0, 3), st.lists(st.integers(0, 2), min_size=1, max_size=4))
APPENDS = st.lists(APPEND, max_size=25)
PROMPTS = st.lists(st.integers(0, 2), max_size=6)


def draft(
    drafter: Drafter, slots: list[int], new: list[list[int]], budget: int = 8, paths: int = 1
) -> Drafts:
    """Does a step of the drafter in which every row has the same budget."""
    return drafter.step(
        np.array(slots, np.int64),
        np.array([token for tokens in new for token in tokens], np.int32),
        np.array([len(tokens) for tokens in new], np.int32),
        np.full(len(slots), budget, np.int32),
        paths,
    )


def followers(prompt: list[int], texts: Texts, context: list[int]) -> Counter[int]:
    """Returns how often each token followed the context; all texts continue the one prompt."""
    followed: Counter[int] = Counter()
    size = len(context)
    for whole, first in [(prompt, 0), *((prompt + text, len(prompt)) for text in texts.values())]:
        for end in range(max(size, first), len(whole)):
            if whole[end - size : end] == context:
                followed[whole[end]] += 1
    return followed


def longest_context(prompt: list[int], texts: Texts, number: int) -> list[int]:
    whole = prompt + texts[number]
    for size in range(len(whole), 0, -1):
        if followers(prompt, texts, whole[-size:]):
            return whole[-size:]
    return []


@given(PROMPTS, APPENDS)
def test_the_context_is_the_longest_suffix_that_has_been_continued(
    prompt: list[int], appends: list[tuple[int, list[int]]]
) -> None:
    drafter = Drafter()
    drafter.open("g", prompt)
    texts: Texts = {number: [] for number in range(4)}
    slots = [drafter.attach("g", number) for number in range(4)]
    for number, tokens in appends:
        texts[number] += tokens
        draft(drafter, [slots[number]], [tokens])
    drafts = draft(drafter, slots, [[]] * 4)
    for number in range(4):
        context = longest_context(prompt, texts, number)
        assert drafts.matches[number] == len(context)
        assert (drafts.counts[number] > 0) <= bool(context)
        assert length(drafter, "g", number) == len(texts[number])


@given(PROMPTS, st.lists(APPEND, max_size=6))
def test_the_likeliest_token_after_any_context_is_the_most_frequent(
    prompt: list[int], appends: list[tuple[int, list[int]]]
) -> None:
    """All counts are exact if no text is longer than COUNTED_SUFFIXES."""
    drafter = Drafter()
    drafter.open("g", prompt)
    texts: Texts = {number: [] for number in range(4)}
    for number, tokens in appends:
        texts[number] += tokens
        drafter.append("g", number, tokens)
    for context, state in contexts(drafter, prompt, texts):
        expected = followers(prompt, texts, context)
        row = arrays(drafter).states[state]
        assert row[automaton.CHILDREN] == len(expected)
        if expected:
            assert expected[int(row[automaton.TOKEN])] == max(expected.values())
            following = arrays(drafter).states[row[automaton.NEXT]]
            assert following[automaton.COUNT] == max(expected.values())


def contexts(drafter: Drafter, prompt: list[int], texts: Texts) -> Iterator[tuple[list[int], int]]:
    """Returns every context of the texts with its state, along edges from the empty context."""
    states, edges, _, _ = arrays(drafter)
    wholes = [prompt + text for text in texts.values()]
    seen = {tuple(w[i:j]) for w in wholes for i in range(len(w)) for j in range(i + 1, len(w) + 1)}
    for context in seen:
        state = 0
        for token in context:
            row, edge = states[state], int(states[state, automaton.EDGE])
            if row[automaton.TOKEN] == token:
                state = int(row[automaton.NEXT])
                continue
            while edges[edge, automaton.LABEL] != token:
                edge = int(edges[edge, automaton.SIBLING])
                assert edge
            state = int(edges[edge, automaton.TO])
        assert states[state, automaton.LENGTH] >= len(context)
        yield list(context), state


@given(PROMPTS, APPENDS, st.integers(1, 4), st.integers(1, 12))
def test_a_draft_is_a_tree_of_continuations_that_have_come_up(
    prompt: list[int], appends: list[tuple[int, list[int]]], paths: int, budget: int
) -> None:
    drafter = Drafter(min_probability=0.02)
    drafter.open("g", prompt)
    texts: Texts = {number: [] for number in range(4)}
    slots = [drafter.attach("g", number) for number in range(4)]
    for number, new in appends:
        texts[number] += new
        draft(drafter, [slots[number]], [new], budget=0)
    tokens, parents, probs, sources, counts, _ = draft(drafter, slots, [[]] * 4, budget, paths)
    for row, count in enumerate(counts):
        assert count <= budget
        children = Counter(parents[row, :count].tolist())
        assert not children or max(children.values()) <= paths
        kinds = {(p, t) for p, t in zip(parents[row, :count], tokens[row, :count], strict=True)}
        assert len(kinds) == count  # no child twice
        for node in range(count):
            parent = parents[row, node]
            assert -1 <= parent < node
            assert 0.02 <= probs[row, node] <= (1.0 if parent < 0 else probs[row, parent])
            assert -1 <= sources[row, node] < 4
            if sources[row, node] >= 0:
                assert tokens[row, node] in texts[sources[row, node]]
        if paths == 1:
            assert parents[row, :count].tolist() == list(range(-1, count - 1))


def test_a_sequence_never_predicts_from_its_own_fresh_end() -> None:
    drafter = Drafter(min_probability=0.01)
    drafter.open("g", [1, 2, 3])
    slot = drafter.attach("g", 0)
    assert draft(drafter, [slot], [[4, 5, 6]]).counts[0] == 0
    drafts = draft(drafter, [slot], [[4]])
    assert drafts.tokens[0, : drafts.counts[0]].tolist() == [5, 6, 4]
    assert drafts.matches[0] == 1


def test_a_loop_of_one_token_is_drafted_to_the_budget() -> None:
    drafter = Drafter()
    drafter.open("g", [])
    slot = drafter.attach("g", 0)
    drafts = draft(drafter, [slot], [[7] * 500], budget=16)
    assert drafts.tokens[0, : drafts.counts[0]].tolist() == [7] * 16


def test_siblings_draft_what_the_others_wrote_and_say_who_did() -> None:
    drafter = Drafter(min_probability=0.01)
    drafter.open("g", [1, 2])
    slots = [drafter.attach("g", number) for number in (30, 40)]
    draft(drafter, slots, [[5, 6, 7, 8, 9], []], budget=0)
    drafts = draft(drafter, slots, [[], [5, 6]])
    assert drafts.tokens[1, : drafts.counts[1]].tolist() == [7, 8, 9]
    assert drafts.sources[1, : drafts.counts[1]].tolist() == [30] * 3
    assert drafts.matches[1] == 4  # with the prompt, which both follow
    draft(drafter, [slots[1]], [[7]])
    drafter.append("g", 50, [5, 6])
    assert draft(drafter, [drafter.attach("g", 50)], [[]]).sources[0, 0] == 40


def test_the_prompt_is_drafted_from_too() -> None:
    drafter = Drafter(min_probability=0.01)
    drafter.open("g", [1, 2, 3, 4])
    drafts = draft(drafter, [drafter.attach("g", 0)], [[1, 2]])
    assert drafts.tokens[0, :2].tolist() == [3, 4]
    assert drafts.sources[0, :2].tolist() == [-1, -1]


def test_growth_keeps_what_was_written_and_the_slots() -> None:
    """The arrays are grown many times in the middle of steps over two groups."""
    dice = np.random.default_rng(2)
    drafter = Drafter(min_probability=0.01)
    groups = ["a", "b"]
    for group in groups:
        drafter.open(group, [1, 2, 3])
    slots = [drafter.attach(group, number) for group in groups for number in range(200)]
    first = [dice.integers(0, 1000, 300).tolist() for _ in slots]
    draft(drafter, slots, first, budget=0)
    assert drafter.tokens == len(slots) * 300 + 6
    assert drafter.nbytes < 150 * drafter.tokens
    again = draft(drafter, slots, [text[:20] for text in first])
    for row, text in enumerate(first):
        assert again.tokens[row, :4].tolist() == text[20:24]
        assert again.matches[row] >= 20


def test_edges_of_a_long_loop_in_the_prompt_find_room() -> None:
    """Every new token after a prompt of one repeated token adds an edge to each of its suffixes."""
    drafter = Drafter()
    drafter.open("g", [1] * 3000)
    for number in range(20):
        drafter.append("g", number, [100 + number])
    assert draft(drafter, [drafter.attach("g", 99)], [[]], paths=4).matches[0] == 3000


def test_a_closed_group_is_gone_and_its_slots_draft_nothing() -> None:
    drafter = Drafter(min_probability=0.01)
    drafter.open("g", [1, 2, 1])
    drafter.open("g", [9])  # it is open: nothing happens
    slot = drafter.attach("g", 0)
    assert draft(drafter, [slot], [[2]]).tokens[0, 0] == 1
    drafter.close("g")
    drafter.close("g")
    assert (drafter.tokens, drafter.nbytes) == (0, 0)
    drafter.open("h", [1, 2, 1])
    other = drafter.attach("h", 0)
    assert other != slot
    drafts = draft(drafter, [slot, other], [[1, 2, 1], [2]])
    assert drafts.counts.tolist()[0] == 0
    assert drafts.tokens[1, 0] == 1
    assert drafter.tokens == 4
    drafter.detach(slot)
    drafter.detach(other)
    assert length(drafter, "h", 0) == 1
    assert drafter.attach("h", 0) in (slot, other)
    with pytest.raises(KeyError):
        drafter.append("g", 0, [1])


def test_budgets_bound_each_row() -> None:
    drafter = Drafter(min_probability=0.01)
    drafter.open("g", list(range(50)) * 9)
    slots = np.array([drafter.attach("g", number) for number in range(3)])
    none = np.zeros(3, np.int32)
    budgets = np.array([0, 3, 9], np.int32)
    drafts = drafter.step(slots, np.empty(0, np.int32), none, budgets, 1)
    assert drafts.counts.tolist() == [0, 3, 9]
    assert drafts.tokens.shape == (3, 9)
    assert drafter.step(slots[:0], none[:0], none[:0], none[:0], 1).tokens.shape == (0, 0)


@pytest.mark.parametrize("token", [-1, 1 << 19])
def test_a_token_out_of_range_is_refused_and_nothing_appended(token: int) -> None:
    drafter = Drafter()
    with pytest.raises(ValueError, match="token ids"):
        drafter.open("g", [token])
    drafter.open("g", [1])  # it is not open
    slot = drafter.attach("g", 0)
    with pytest.raises(ValueError, match="token ids"):
        drafter.append("g", 0, [1, token])
    with pytest.raises(ValueError, match="token id"):
        draft(drafter, [slot], [[1, token]])
    assert drafter.tokens == 1


def test_arguments_that_contradict_each_other_are_refused() -> None:
    drafter = Drafter()
    drafter.open("g", [1])
    slot = drafter.attach("g", 0)
    one, two = np.ones(1, np.int32), np.full(1, 2, np.int32)
    for slots, counts, budgets in (
        (np.array([slot]), two, one),
        (np.array([slot]), -one, one),
        (np.array([slot + 1000]), one, one),
        (np.array([-1]), one, one),
        (np.array([slot]), one, np.ones(2, np.int32)),
    ):
        with pytest.raises(ValueError):
            drafter.step(slots, one, counts, budgets, 1)
    with pytest.raises(ValueError, match="not in"):
        drafter.attach("g", -1)
    with pytest.raises(ValueError, match="min_probability"):
        Drafter(min_probability=0)
    assert drafter.tokens == 1
