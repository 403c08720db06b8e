"""How long a group of siblings waits for more of them."""

from typing import Any

import numpy as np
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


def test_prompts_of_two_lengths_with_one_checksum_are_kept_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A client can find such prompts for any factor.
    monkeypatch.setattr(siblings_module, "FACTOR", 1)
    siblings, opened = Siblings(5.0, 600.0), []
    for ids in (token_array([3]), token_array([1, 1])):
        call = Call(rid="r", prompt_ids=ids, sampling=Sampling(), seed=0)
        group = Group(
            group_id="g", uid=str(len(ids)), prompt=Prompt(prompt_id="g", prompt_ids=ids, n=1)
        )
        assert siblings.find(call) is None
        opened.append(siblings.opened(group, call, 0.0))
        assert siblings.find(call) is opened[-1]
    for each in reversed(opened):
        siblings.close(each)


def test_the_powers_of_a_long_prompt_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    siblings, made = Siblings(5.0, 600.0), list[int]()
    cumprod = np.cumprod

    def count(values: Any, **options: Any) -> Any:
        made.append(len(values))
        return cumprod(values, **options)

    monkeypatch.setattr(np, "cumprod", count)
    ids = token_array(range(10_000))
    call = Call(rid="r", prompt_ids=ids, sampling=Sampling(), seed=0)
    assert siblings.find(call) is None
    assert not made, "no group is open"
    group = Group(group_id="g", uid="g", prompt=Prompt(prompt_id="g", prompt_ids=ids, n=1))
    opened = siblings.opened(group, call, 0.0)
    assert siblings.find(call) is opened
    siblings.close(opened)
    assert len(made) == 1
