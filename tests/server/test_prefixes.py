"""The names that an abort is for."""

from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.server.prefixes import EVERY, Prefixes

NAMES = st.text("ab/", max_size=5)


@given(st.lists(NAMES, max_size=6), NAMES)
def test_a_name_is_matched_if_it_begins_with_a_prefix(prefixes: list[str], name: str) -> None:
    assert Prefixes(prefixes).match(name) == any(map(name.startswith, prefixes))
    assert EVERY.match(name)


def test_a_look_up_costs_no_step_per_prefix() -> None:
    many = Prefixes(f"{number:08}" for number in range(200_000))
    assert len(many._lengths) == 1
    assert many.match("00199999-3") and not many.match("0019999")
