"""The server under abuse, and the plain engine that its answers are compared with."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml

from seer_sgl.processes.child import free_port
from tests.e2e.conftest import ROOT, SEER_SGL, SERVER_FLAGS, servers, two_urls
from tests.support.programs import running, wait_for

CLIENT, ADMIN = "the-token-of-clients", "the-token-of-the-trainer"
MAX_BODY = 8 << 20
SEED = 7  # of the server's config and of the reference


class Serving(NamedTuple):
    """A running `seer-sgl serve`."""

    url: str
    process: psutil.Process
    log: Path


def config() -> dict[str, Any]:
    """Returns the config: all of Seer on two engines, short chunks, tokens, a small `max_body`."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "configs" / "cpu-seer.yaml").read_text())
    found["scheduling"]["chunk_tokens"] = 64
    found["rollout"] = {"seed": SEED}
    found["server"] = {"max_body": f"{MAX_BODY >> 20}mb"}
    return found


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Serving]:
    """Starts the server as a user would, and yields it once it is ready."""
    folder.mkdir(parents=True, exist_ok=True)
    file, log, port = folder / "server.yaml", folder / "server.log", free_port()
    file.write_text(yaml.safe_dump(config()))
    command = [*SEER_SGL, "serve", "--config", str(file), "--port", str(port)]
    tokens = {"SEER_SGL_SERVER_KEY": CLIENT, "SEER_SGL_ADMIN_KEY": ADMIN}
    command += ["--log-dir", str(folder / "logs")]
    with running(command, log, os.environ | tokens) as process:
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/ready", process, log)
        yield Serving(url, psutil.Process(process.pid), log)


@contextlib.contextmanager
def plain_engine(folder: Path) -> Iterator[str]:
    """Yields the URL of an engine without drafts and pool."""
    folder.mkdir(parents=True, exist_ok=True)
    urls = two_urls()[:1]
    with servers(urls, [SERVER_FLAGS], folder):
        yield urls[0]
