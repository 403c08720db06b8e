"""How long a group of siblings waits for more of them."""

import pytest

from seer_sgl.server import siblings as siblings_module
from seer_sgl.server.calls import Call
from seer_sgl.server.siblings import MOST_CANDIDATES, Siblings
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


def test_a_call_is_compared_with_few_of_the_prompts_that_begin_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    siblings, compared = Siblings(5.0, 600.0), list[int]()

    def count(call: Call, group: Group) -> bool:
        compared.append(len(group.prompt.prompt_ids))
        return begins_with(call, group)

    begins_with = siblings_module._begins_with
    monkeypatch.setattr(siblings_module, "_begins_with", count)
    for length in range(1, 101):
        ids = token_array([7]) * length
        call = Call(rid=str(length), prompt_ids=ids, sampling=Sampling(), seed=0)
        assert siblings.find(call) is None
        group = Group(group_id="g", uid=call.rid, prompt=Prompt(prompt_id="g", prompt_ids=ids, n=1))
        opened = siblings.opened(group, call, 0.0)
        compared.clear()
        assert siblings.find(call) is opened
        assert compared[0] == length
        compared.clear()
    longer = Call(rid="r", prompt_ids=token_array([7]) * 200, sampling=Sampling(), seed=0)
    assert siblings.find(longer) is None
    assert compared == [*range(100, 100 - MOST_CANDIDATES, -1)]
