"""The engines' replies to one call. Pure."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Self

import msgspec

from seer_sgl.engine.server_calls import one_line
from seer_sgl.errors import RolloutError

LOCATION = '\n\n  File "'  # begins what FastAPI adds to its message: a path and a line of SGLang


class EngineReply(msgspec.Struct, frozen=True):
    """What one engine replied. `status`: None if it did not answer. `reply`: JSON, or text.

    `late`: it did not answer in time, or a proxy answers that it did not; it may still do what the
    call asked for.
    """

    status: int | None
    reply: Any = None
    late: bool = False

    @property
    def ok(self) -> bool:
        """Whether the engine did what the call asked for."""
        if self.status is None or self.status >= HTTPStatus.MULTIPLE_CHOICES:
            return False
        return not (isinstance(self.reply, dict) and self.reply.get("success") is False)

    @property
    def refused(self) -> bool:
        """Whether the engine answered that it did not do what the call asked for."""
        return self.status is not None and not self.ok

    @property
    def unanswered(self) -> bool:
        """Whether the engine may still do what the call asked for."""
        return self.late or self.status is None

    @property
    def unread(self) -> bool:
        """Whether the engine's HTTP server refused the call, before SGLang acted on it.

        What SGLang replies to a call that it has tried has `success`, or is an error of a server.
        """
        if self.status is None or self.ok or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return False
        return not (isinstance(self.reply, dict) and "success" in self.reply)

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


class CallResult(msgspec.Struct, frozen=True):
    """What a call to the engines came to.

    `failed`: the replies that make the call fail as a whole; none if it succeeded, although some
    engines may have failed. `note`: why it failed, if the replies do not say it.
    """

    replies: Replies
    failed: Replies = {}
    note: str = ""

    @classmethod
    def of(cls, replies: Replies) -> Self:
        """Returns the result of a call that fails if an engine refuses it, or if none answers."""
        return cls(replies, failures(replies))

    @property
    def succeeded(self) -> list[str]:
        """The ids of the engines that did what the call asked for."""
        return [name for name, reply in self.replies.items() if reply.ok]

    @property
    def message(self) -> str:
        """One line that names the engines that failed, and why; empty if none did."""
        failed = self.failed or failed_of(self.replies)
        which = named(failed, len(self.replies)) if failed else ""
        return f"{self.note} ({which})" if self.note else which


class EnginesFailed(RolloutError):
    """A call to the engines failed as a whole. `result`: what each of them replied."""

    def __init__(self, result: CallResult) -> None:
        super().__init__(result.message)
        self.result = result


def read_reply(status: int, body: bytes) -> EngineReply:
    """Returns an engine's reply; a body that is not JSON becomes one line of text."""
    try:
        reply = msgspec.json.decode(body) if body else None
        msgspec.json.encode(reply)  # a client's answer may contain it
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError):
        reply = one_line(body[:4096].decode(errors="replace"))
    return EngineReply(status, without_location(reply), status == HTTPStatus.GATEWAY_TIMEOUT)


def without_location(reply: Any) -> Any:
    """Returns an engine's reply whose message ends before a place in SGLang's code."""
    if not isinstance(reply, dict) or not isinstance(reply.get("message"), str):
        return reply
    return {**reply, "message": reply["message"].partition(LOCATION)[0]}


def failed_of(replies: Replies) -> dict[str, EngineReply]:
    """Returns the replies of the engines that did not do what the call asked for."""
    return {name: reply for name, reply in replies.items() if not reply.ok}


def failures(replies: Replies) -> dict[str, EngineReply]:
    """Returns the replies that make a call fail.

    An engine that does not answer generates nothing: it fails the call only if no engine succeeded.
    """
    failed = failed_of(replies)
    if len(failed) == len(replies):
        return failed
    return {name: reply for name, reply in failed.items() if reply.status is not None}


def named(failed: Replies, count: int) -> str:
    """Returns one line that names the engines that failed, and why."""
    which = "; ".join(f"{name}: {reply.message}" for name, reply in failed.items())
    return f"{len(failed)} of {count} engines failed: {which}"
