"""The tree finds the same item as a linear search."""

from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.scheduling.first_fit import ABSENT, FirstFit


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(ABSENT, 9)), max_size=80),
    st.integers(0, 10),
)
def test_it_agrees_with_a_linear_search(puts: list[tuple[int, int]], least: int) -> None:
    tree, plain = FirstFit(), [ABSENT] * 41
    for index, value in puts:
        tree.put(index, value)
        plain[index] = value
        assert tree.largest == max(plain)
        expected = next((i for i, item in enumerate(plain) if item >= least), None)
        assert tree.first_at_least(least) == expected
