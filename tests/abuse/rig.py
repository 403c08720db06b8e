"""The server under abuse, and the plain engine that its answers are compared with."""

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tests.e2e.conftest import SERVER_FLAGS, servers, two_urls
from tests.e2e.served import Serving, serving_all

CLIENT, ADMIN = "the-token-of-clients", "the-token-of-the-trainer"
MAX_BODY = 8 << 20
SEED = 7  # of the first rollout


def serving(folder: Path) -> AbstractContextManager[Serving]:
    """Starts the server with tokens and a small `max_body`."""
    tokens = {"SEER_SGL_SERVER_KEY": CLIENT, "SEER_SGL_ADMIN_KEY": ADMIN}
    return serving_all(folder, [f"server.max_body={MAX_BODY >> 20}mb"], os.environ | tokens)


@contextlib.contextmanager
def plain_engine(folder: Path) -> Iterator[str]:
    """Yields the URL of an engine without drafts and pool."""
    folder.mkdir(parents=True, exist_ok=True)
    urls = two_urls()[:1]
    with servers(urls, [SERVER_FLAGS], folder):
        yield urls[0]
