"""Errors that a client receives: an HTTP status and one line."""

from seer_sgl.errors import InputError, JournalInUse, RolloutError, SeerError, StateError
from seer_sgl.processes.child import LOG_PATH


class HttpError(SeerError):
    """The answer to a request that the server does not serve. The message goes to the client."""

    status = 500
    retry_after_s: int | None = None

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status or self.status


class BadRequest(HttpError):
    """The request is wrong: the message names the field."""

    status = 400


class Aborted(BadRequest):
    """The request was aborted before an engine had it. Not a 5xx: clients send those again."""


class NotFound(HttpError):
    """There is nothing under this name."""

    status = 404


class Conflict(HttpError):
    """The request contradicts the state of the server."""

    status = 409


class TooMany(HttpError):
    """The server has as much in progress as it may have."""

    status = 429
    retry_after_s = 1


class Unavailable(HttpError):
    """No engine can serve the request now."""

    status = 503
    retry_after_s = 1


class Failed(HttpError):
    """The engines could not produce the response."""

    status = 502


def http_error(error: Exception) -> HttpError | None:
    """Returns the answer for an error of another room; None for one that a client cannot mend."""
    message = str(error)
    if isinstance(error, HttpError):
        return error
    if isinstance(error, StateError | JournalInUse):
        return Conflict(message)
    if isinstance(error, InputError):
        return BadRequest(message)
    return Unavailable(message) if isinstance(error, RolloutError) else None


def public(message: str) -> str:
    """Returns a message without the path of a log, which is the server's own business."""
    return message.partition(LOG_PATH)[0]
