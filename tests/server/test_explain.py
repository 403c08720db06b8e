"""What a client reads when an engine fails with its request, or cannot read it."""

import json

import pytest

from seer_sgl.backend.replies import read_reply
from seer_sgl.server.explain import CRASH, explained

READABLE = "1 validation error:\n  {'loc': ('body', 'max_tokens'), 'msg': 'must be positive'}"
PLACE = '\n\n  File "/venv/sglang/http_server.py", line 1769, in completions\n    POST /v1'
REFUSAL = {"object": "error", "message": READABLE + PLACE, "code": 400}


def test_an_engine_that_fails_without_a_message_gets_one_with_the_unusual_parameter() -> None:
    body = explained(500, CRASH, "max_new_token")
    assert body is not None
    assert json.loads(body)["error"]["message"].endswith("because of max_new_token")


def test_a_message_does_not_name_files_of_an_engine() -> None:
    body = explained(400, json.dumps(REFUSAL).encode(), "max_tokens")
    assert body is not None
    assert json.loads(body) == {**REFUSAL, "message": READABLE}
    assert read_reply(400, json.dumps(REFUSAL).encode()).reply == {**REFUSAL, "message": READABLE}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not JSON",
        b"[1]",
        b'{"message": 5}',
        b'{"error": {"message": "top_p must be"}}',
        CRASH,
    ],
)
def test_other_answers_stay_as_they_are(body: bytes) -> None:
    assert explained(400, body, "top_p") is None
