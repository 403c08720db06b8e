"""What is asked of the server before a training starts, so that nothing is missing later."""

import http.client
import json
import os
import urllib.error
import urllib.request

from .flags import SeerFlags

ANSWER_S = 5.0  # for one request
UNAUTHORIZED = (401, 403)


class ServeError(RuntimeError):
    """The server cannot be started or cannot be used; the text is one line."""


def require_server(flags: SeerFlags) -> None:
    """Raises ServeError unless the server at `flags.url` is ready and takes both tokens.

    It must be a seer-sgl server: an SGLang server has no rollouts.
    """
    reason = unhealthy(flags.url)
    if reason is not None:
        raise ServeError(f"--seer.url: {flags.url} is not ready: {reason}")
    token = os.environ.get(flags.token_env)
    admin_token = os.environ.get(flags.admin_token_env) or token  # as the client
    _require("/rollouts", flags.url, token, f"--seer.token_env: {flags.token_env}")
    _require("/workers", flags.url, admin_token, f"--seer.admin_token_env: {flags.admin_token_env}")


def unhealthy(url: str) -> str | None:
    """Returns the reason why `/health` does not answer 200; None if it does."""
    try:
        _get(url.rstrip("/") + "/health", None)
    except urllib.error.HTTPError as error:
        return f"/health answers {error.code}"
    except (OSError, http.client.HTTPException) as error:
        return _reason(error)
    return None


def _require(path: str, url: str, token: str | None, variable: str) -> None:
    """Raises ServeError unless a GET of a route is answered with a JSON object."""
    try:
        found = json.loads(_get(url.rstrip("/") + path, token))
    except urllib.error.HTTPError as error:
        if error.code in UNAUTHORIZED:
            state = "not set" if token is None else "not the right one"
            raise ServeError(f"{variable} is {state}: {url} demands a token for {path}") from None
        found = f"it answers {error.code}"
    except ValueError:
        found = "its answer is no JSON"
    except (OSError, http.client.HTTPException) as error:
        raise ServeError(f"--seer.url: {url} does not answer {path}: {_reason(error)}") from None
    if not isinstance(found, dict):
        raise ServeError(f"--seer.url: {url} is no seer-sgl server: {path}: {found}")


def _get(url: str, token: str | None) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with opener.open(urllib.request.Request(url, headers=headers), timeout=ANSWER_S) as answer:
        content: bytes = answer.read()
        return content


def _reason(error: Exception) -> str:
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(inner) or type(inner).__name__
