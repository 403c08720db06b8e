"""Which sampling parameters keep a request undivided."""

from seer_sgl.admission.sampling import undivided
from seer_sgl.types import Sampling


def test_what_cannot_be_divided_is_known() -> None:
    assert not list(undivided(Sampling()))
    found = undivided(Sampling(presence_penalty=0.5, regex="a"))
    assert [reason.key for reason in found] == ["presence_penalty", "regex"]
