"""Errors that a client receives: an HTTP status and one line."""

from seer_sgl.errors import SeerError


class HttpError(SeerError):
    """The answer to a request that the server does not serve. The message goes to the client."""

    status = 500
    retry_after_s: int | None = None


class BadRequest(HttpError):
    """The request is wrong: the message names the field."""

    status = 400


class NotFound(HttpError):
    """There is nothing under this name."""

    status = 404


class Conflict(HttpError):
    """The request contradicts the state of the server."""

    status = 409


class TooMany(HttpError):
    """The server has as many responses in progress as it may have."""

    status = 429
    retry_after_s = 1


class Unavailable(HttpError):
    """No engine can serve the request now."""

    status = 503
    retry_after_s = 1


class Failed(HttpError):
    """The engines could not produce the response."""

    status = 502
