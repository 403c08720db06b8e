"""Makes errors of engines readable for clients. Pure."""

from http import HTTPStatus

import msgspec

from seer_sgl.backend.replies import without_location

from .json import dumps

CRASH = b"Internal Server Error"  # the whole answer of SGLang to a request that it failed with
MOST_BYTES = 1 << 16  # a longer answer is no error that this module knows


def explained(status: int, body: bytes, reason: str) -> bytes | None:
    """Returns JSON to send instead of the body of an engine's error; None: send it unmodified.

    `reason`: why the request was not divided; SGLang names none for its own failures.
    """
    if status == HTTPStatus.INTERNAL_SERVER_ERROR and body == CRASH:
        message = f"the engine failed with this request, which was not divided because of {reason}"
        return dumps({"error": {"message": message}})
    try:
        reply = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    cut = without_location(reply)
    return None if cut == reply else dumps(cut)
