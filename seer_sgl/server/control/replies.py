"""The engines' replies to one control call, and the one answer made of them. Pure."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from seer_sgl.engine.describe import one_line
from seer_sgl.server.explain import without_location


class EngineReply(msgspec.Struct, frozen=True):
    """What one engine replied. `status`: None if it did not answer. `reply`: JSON, or text."""

    status: int | None
    reply: Any = None

    @property
    def ok(self) -> bool:
        """Whether the engine did what the call asked for."""
        if self.status is None or self.status >= HTTPStatus.MULTIPLE_CHOICES:
            return False
        return not (isinstance(self.reply, dict) and self.reply.get("success") is False)

    @property
    def message(self) -> str:
        """The engine's explanation in one line."""
        reply = self.reply
        if isinstance(reply, dict):
            error = reply.get("error")
            nested = error.get("message") if isinstance(error, dict) else error
            reply = reply.get("message") or reply.get("error_message") or nested
        text = one_line(reply) if isinstance(reply, str) else ""
        return text or f"HTTP {self.status}"


Replies = Mapping[str, EngineReply]  # by engine id
DONE = EngineReply(HTTPStatus.OK, {"success": True, "message": "Success."})


def read_reply(status: int, body: bytes) -> EngineReply:
    """Returns an engine's reply; a body that is not JSON becomes one line of text."""
    try:
        reply = msgspec.json.decode(body) if body else None
        msgspec.json.encode(reply)  # the answer to the client contains it
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError):
        reply = one_line(body[:4096].decode(errors="replace"))
    return EngineReply(status, without_location(reply))


def failed_of(replies: Replies) -> dict[str, EngineReply]:
    """Returns the replies of the engines that did not do what the call asked for."""
    return {name: reply for name, reply in replies.items() if not reply.ok}


def failures(replies: Replies, *, all_needed: bool = False) -> dict[str, EngineReply]:
    """Returns the replies that make a call fail.

    An engine that does not answer generates nothing: it fails the call only if no engine succeeded,
    or if the call needs them all (a collective operation).
    """
    failed = failed_of(replies)
    if all_needed or len(failed) == len(replies):
        return failed
    return {name: reply for name, reply in failed.items() if reply.status is not None}


def combined(
    replies: Replies, message: str, *, failed: Replies, **fields: Any
) -> tuple[int, dict[str, Any]]:
    """Returns HTTP status and body of the one answer.

    Its fields are those of SGLang's own reply, with `engines` beside them. `message`: for a
    success, if SGLang's reply has none. `fields`: more of them. The status is that of all replies
    that `failed` if they have the same.
    """
    shown = next(iter(failed.values()), None) or next(
        (reply for reply in replies.values() if reply.ok), None
    )
    answer = dict(shown.reply) if shown is not None and isinstance(shown.reply, dict) else {}
    if failed:
        answer["message"] = named(failed, len(replies))
    answer["success"] = not failed
    answer.setdefault("message", message)
    answer |= fields
    answer["engines"] = {
        name: {"status": reply.status, "reply": reply.reply} for name, reply in replies.items()
    }
    return _status(failed), answer


def _status(failed: Replies) -> int:
    statuses = {reply.status for reply in failed.values()}
    if not statuses:
        return HTTPStatus.OK
    if statuses == {None}:
        return HTTPStatus.BAD_GATEWAY
    only = statuses.pop() if len(statuses) == 1 else None
    return max(only or 0, HTTPStatus.BAD_REQUEST)


def named(failed: Replies, count: int) -> str:
    """Returns one line that names the engines that failed, and why."""
    which = "; ".join(f"{name}: {reply.message}" for name, reply in failed.items())
    return f"{len(failed)} of {count} engines failed: {which}"
