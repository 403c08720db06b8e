"""What an aborted reply says of its last step."""

from types import SimpleNamespace
from typing import Any

from seer_sgl.engine.plugin.ends import EXAMINED, step_ends


def request(tokens: int, to_finish: Any = None, finished: Any = None) -> Any:
    return SimpleNamespace(
        output_ids=[5] * tokens,
        to_finish=to_finish,
        finished_reason=finished,
        customized_info=None,
    )


def test_an_aborted_request_reports_its_tokens_before_the_step() -> None:
    aborted = request(7, to_finish="abort")
    step_ends(aborted, 3)
    assert aborted.customized_info == {EXAMINED: [4] * 7}
    plain = request(7, to_finish="abort")
    plain.customized_info = {"of others": [0] * 7}
    step_ends(plain)
    assert plain.customized_info == {"of others": [0] * 7, EXAMINED: [6] * 7}
    early = request(0, to_finish="abort")
    step_ends(early)
    assert early.customized_info == {EXAMINED: []}


def test_no_other_request_reports_anything() -> None:
    for other in (request(7), request(7, to_finish="abort", finished="stop")):
        step_ends(other, 3)
        assert other.customized_info is None
