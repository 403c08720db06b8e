"""Calls of HTTP endpoints that return when the answer is there."""

import json
import urllib.request
from typing import Any

TIMEOUT_S = 300.0


def post(url: str, **fields: Any) -> Any:
    """Returns the answer to fields, or to an empty POST: an object of JSON, or any other text.

    Its status must be 200. Raises HTTPError for an error's status.
    """
    body, headers = json.dumps(fields).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(url, body if fields else None, headers, method="POST")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        assert reply.status == 200
        text = reply.read().decode()
    return json.loads(text) if text.startswith("{") else text
