"""The one answer to a control call, made of the engines' replies. Pure."""

from http import HTTPStatus
from typing import Any

from seer_sgl.backend.replies import CallResult, Replies, failed_of, named

Answer = tuple[int, Any]  # HTTP status and JSON


def combined(result: CallResult, message: str = "Success.") -> tuple[int, dict[str, Any]]:
    """Returns HTTP status and body of the one answer.

    Its fields are those of SGLang's own reply, with `engines` beside them. `message`: for a
    success, if SGLang's reply has none. The status is that of all replies that failed if they have
    the same.
    """
    replies, failed = result.replies, result.failed
    shown = next(iter(failed.values()), None) or next(
        (reply for reply in replies.values() if reply.ok), None
    )
    answer = dict(shown.reply) if shown is not None and isinstance(shown.reply, dict) else {}
    if failed:
        answer["message"] = result.message
    answer["success"] = not failed
    answer.setdefault("message", message)
    answer["engines"] = {
        name: {"status": reply.status, "reply": reply.reply} for name, reply in replies.items()
    }
    return _status(failed), answer


def updated(result: CallResult) -> tuple[int, dict[str, Any]]:
    """Returns the answer of an update that succeeded, which names the engines that missed it."""
    status, answer = combined(result)
    missed = failed_of(result.replies)
    if missed:
        why = named(missed, len(result.replies))
        done = answer["message"] or "Success."
        answer["message"] = f"{done} {why}; they serve nothing until the next update"
    return status, answer


def _status(failed: Replies) -> int:
    statuses = {reply.status for reply in failed.values()}
    if not statuses:
        return HTTPStatus.OK
    if statuses == {None}:
        return HTTPStatus.BAD_GATEWAY
    only = statuses.pop() if len(statuses) == 1 else None
    return max(only or 0, HTTPStatus.BAD_REQUEST)
