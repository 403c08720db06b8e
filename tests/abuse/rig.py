"""The server under abuse, and the plain engine that its answers are compared with."""

import contextlib
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml

from seer_sgl.processes.child import free_port
from tests.e2e.conftest import ROOT, SEER_SGL, SERVER_FLAGS, servers, two_urls
from tests.listening import family

CLIENT, ADMIN = "the-token-of-clients", "the-token-of-the-trainer"
START_S = 300.0
STOP_S = 60.0
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
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*command, "--log-dir", str(folder / "logs")],
            cwd=ROOT,
            env=os.environ | tokens,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        server = psutil.Process(process.pid)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url, process, log)
            yield Serving(url, server, log)
        finally:
            everything = family(server) if process.poll() is None else []
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            for each in everything:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()


def _wait(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(f"{url}/ready", timeout=5),
        ):
            return
        time.sleep(0.5)
    raise SystemExit(f"the server did not start; its log: {log}\n{log.read_text()[-2000:]}")


@contextlib.contextmanager
def plain_engine(folder: Path) -> Iterator[str]:
    """Yields the URL of an engine without drafts and pool."""
    folder.mkdir(parents=True, exist_ok=True)
    urls = two_urls()[:1]
    with servers(urls, [SERVER_FLAGS], folder):
        yield urls[0]
