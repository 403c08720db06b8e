"""Impossible replies of /generate (`GARBAGE`) and of control calls (`CONTROL`).

Both map a name to a function from a valid decoded reply to the body of the impossible one.
"""

from collections.abc import Callable
from typing import Any

import msgspec

Reply = dict[str, Any]
DEEP = 200_000  # levels


def encoded(reply: Any) -> bytes:
    return msgspec.json.encode(reply)


def meta(**changes: Any) -> Callable[[Reply], bytes]:
    """Replaces values in `meta_info`; a function is called with the old value."""

    def garble(reply: Reply) -> bytes:
        found = reply["meta_info"]
        made = {key: new(found) if callable(new) else new for key, new in changes.items()}
        return encoded({**reply, "meta_info": {**found, **made}})

    return garble


def without(*keys: str) -> Callable[[Reply], bytes]:
    """Removes fields of `meta_info`."""

    def garble(reply: Reply) -> bytes:
        kept = {key: value for key, value in reply["meta_info"].items() if key not in keys}
        return encoded({**reply, "meta_info": kept})

    return garble


def last_token(logprob: Any = -1.0, token: int = 5) -> Callable[[Reply], bytes]:
    """Replaces the last token and its logprob."""

    def entries(found: Reply) -> list[Any]:
        return [*found["output_token_logprobs"][:-1], [logprob, token, None]]

    return meta(output_token_logprobs=entries, finish_reason={"type": "length", "length": 8})


def spans(*parts: tuple[int, int]) -> Callable[[Reply], bytes]:
    """Replaces the weight versions' token ranges; -1 is the number of all tokens."""

    def made(found: Reply) -> list[Reply]:
        count = found["completion_tokens"]
        ends = [[count if n == -1 else n for n in part] for part in parts]
        return [{"version": "v1", "start": start, "end": end} for start, end in ends]

    return meta(weight_versions=made)


def raw(body: bytes) -> Callable[[Reply], bytes]:
    return lambda _: body


def nested(before: bytes, after: bytes) -> Callable[[Reply], bytes]:
    return raw(before + b"[" * DEEP + b"]" * DEEP + after)


ONE = [[-1.0, 5, None]]
MANY = [[-1.0, 5, None]] * 1000
GARBAGE: dict[str, Callable[[Reply], bytes]] = {
    "nothing": raw(b""),
    "html": raw(b"<html>proxy error</html>"),
    "a list": raw(b"[]"),
    "cut off": lambda reply: encoded(reply)[:-20],
    "bad UTF-8": lambda reply: encoded(reply).replace(b'"v1"', b'"\xff\xfe1"'),
    "deep": nested(b'{"meta_info":', b"}"),
    "deep and unread": nested(b'{"x":', b',"meta_info":{}}'),
    "endless": lambda reply: encoded({**reply, "text": "x" * (6 << 20)}),
    "a number for all": raw(b'{"meta_info": 3}'),
    "no finish": meta(finish_reason=None),
    "another finish": meta(finish_reason={"type": "bored"}),
    "another rid": meta(id="somebody.else.c1/"),
    "no rid": without("id"),
    "no tokens, no count": without("output_token_logprobs", "completion_tokens"),
    "no count": without("completion_tokens"),
    "another count": meta(completion_tokens=lambda found: found["completion_tokens"] + 1),
    "an abort with more logprobs than tokens": meta(
        finish_reason={"type": "abort"},
        output_token_logprobs=ONE * 3,
        completion_tokens=1,
        weight_versions=[{"version": "v1", "start": 0, "end": 1}],
    ),
    "more than asked": meta(
        output_token_logprobs=MANY, completion_tokens=len(MANY), finish_reason={"type": "length"}
    ),
    "nothing at length": meta(
        output_token_logprobs=[], completion_tokens=0, finish_reason={"type": "length"}
    ),
    "nothing before a stop": meta(
        output_token_logprobs=[],
        completion_tokens=0,
        finish_reason={"type": "stop", "matched": 0},
    ),
    "a stop that is not there": meta(
        output_token_logprobs=ONE,
        completion_tokens=1,
        finish_reason={"type": "stop", "matched": 7},
    ),
    "a stop without a name": meta(finish_reason={"type": "stop"}),
    "NaN logits": meta(finish_reason={"type": "stop", "matched": "NaN happened"}),
    "a negative id": last_token(token=-1),
    "an id beyond the vocabulary": last_token(token=1000),
    "an id of 33 bits": last_token(token=1 << 32),
    "an id of 70 bits": last_token(token=1 << 63),
    "a null logprob": last_token(logprob=None),
    "an infinite logprob": last_token(logprob=-1e300),
    "a positive logprob": last_token(logprob=0.001),
    "versions with a gap": spans((0, 0), (1, -1)),
    "versions that overlap": spans((0, -1), (0, -1)),
    "versions that end early": spans((0, 0)),
    "versions that go back": spans((0, 5), (5, 0), (0, -1)),
    "no versions": spans(),
}

STATE: Reply = {"effective_max_running_requests_per_dp": 4}


def states(*reports: Any) -> Callable[[Reply], bytes]:
    """Replaces the plugin's reports in `/server_info`, one per scheduler."""
    found = [{**STATE, "seer_sgl": report} for report in reports]
    return lambda reply: encoded({**reply, "internal_states": found})


def top(**changes: Any) -> Callable[[Reply], bytes]:
    return lambda reply: encoded({**reply, **changes})


WHOLE = {"version": "1", "missing": []}
CONTROL: dict[str, dict[str, Callable[[Reply], bytes]]] = {
    "/v1/loads": {
        "bad UTF-8": raw(b'{"loads":[{"\xff\xfe":2,"decode_moments":"\xff"}]}'),
        "deep": nested(b'{"x":', b',"loads":[]}'),
        "no ranks": top(loads=[]),
        "a huge number": raw(b'{"loads":[{"num_used_tokens":1e400}]}'),
        "endless": top(x="x" * (5 << 20)),
    },
    "/model_info": {
        "bad UTF-8": lambda reply: encoded(reply).replace(b'"v1"', b'"\xff"'),
        "deep": nested(b'{"x":', b"}"),
        "no version": raw(b'{"model_path": "fake"}'),
        "a number as version": top(weight_version=1),
        "endless": top(x="x" * (5 << 20)),
    },
    "/server_info": {
        "bad UTF-8": lambda reply: encoded(reply).replace(b'"0.5.21"', b'"\xff"'),
        "deep": nested(b'{"x":', b"}"),
        "no schedulers": top(internal_states=[]),
        "no KV": top(max_total_num_tokens=0),
        "no pages": top(page_size=0),
        "endless": top(x="x" * (5 << 20)),
        "a report without a version": states({"missing": []}),
        "a report without hooks": states({"version": "1"}),
        "a list as report": states([]),
        "hooks as text": states({**WHOLE, "missing": [1]}),
        "half a pool": states({**WHOLE, "pool": {"namespace": "n"}}),
        "half the work": states({**WHOLE, "work": {"forward_steps": 1}}),
        "drafts as text": states({**WHOLE, "draft": {"draft_tokens": "many"}}),
        "drafts as a list": states({**WHOLE, "draft": [1]}),
        "no vocabulary": states({**WHOLE, "vocab_size": 0}),
    },
}
