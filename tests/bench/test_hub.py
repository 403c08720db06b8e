"""The load that the benchmark of the draft hub makes."""

from argparse import Namespace

import pytest

from bench.hub import Engine
from seer_sgl.draft.replica import FLUSH_S


@pytest.mark.parametrize("rate", [10.0, 20.0, 25.0, 70.0])
def test_a_response_sends_as_many_tokens_per_second_as_asked(rate: float) -> None:
    engine = Engine(3, ["a", "b"], Namespace(rows=4, tokens_per_s=rate))
    sent = [0] * 4
    for _ in range(round(4 / FLUSH_S)):
        for delta in (delta for part in engine.deltas() for delta in part):
            row = delta.sequence % 4
            assert delta.position == sent[row]
            sent[row] += len(delta.tokens) // 4
    assert sent == [round(4 * rate)] * 4
