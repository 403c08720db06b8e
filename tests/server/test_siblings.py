"""How long a group of siblings waits for more of them."""

import pytest

from seer_sgl.server.calls import Call
from seer_sgl.server.siblings import Siblings
from seer_sgl.types import Group, Prompt, Sampling, token_array


@pytest.mark.parametrize(("interrupted", "until_s"), [(False, 5.0), (True, 600.0)])
def test_an_interrupted_group_waits_longer(interrupted: bool, until_s: float) -> None:
    siblings, ids = Siblings(5.0, 600.0), token_array([1, 2])
    call = Call(rid="r", prompt_ids=ids, sampling=Sampling(), seed=0)
    group = Group(group_id="g", uid="g", prompt=Prompt(prompt_id="g", prompt_ids=ids, n=1))
    opened = siblings.opened(group, call, 0.0)
    opened.interrupted = interrupted
    assert siblings.expired(until_s - 0.1) == []
    assert siblings.expired(until_s) == [opened]
