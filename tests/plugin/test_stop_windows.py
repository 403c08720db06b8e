"""A finished request with stop strings reports SGLang's count of their tokens."""

from types import SimpleNamespace
from typing import Any

from seer_sgl.link.contract import STOP_TOKENS
from seer_sgl.plugin.stop_conditions import report_window


def request(finished: object, stops: list[str]) -> Any:
    return SimpleNamespace(
        output_ids=[5, 6, 7],
        finished_reason=finished,
        sampling_params=SimpleNamespace(stop_strs=stops, stop_str_max_len=4),
        customized_info={"other": [1, 2, 3]},
    )


def test_the_count_is_in_the_reply_once_per_token() -> None:
    req = request("length", ["stop"])
    report_window(req)
    assert req.customized_info == {"other": [1, 2, 3], STOP_TOKENS: [4, 4, 4]}


def test_a_running_request_and_one_without_stop_strings_report_nothing() -> None:
    for req in (request(None, ["stop"]), request("length", [])):
        report_window(req)
        assert req.customized_info == {"other": [1, 2, 3]}
