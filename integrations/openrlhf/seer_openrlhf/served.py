"""`seer-sgl serve` as a child process, started from its own environment for `--seer.config`."""

import contextlib
import http.client
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from .flags import FLAGS, SeerFlags
from .ports import free_port

HOST = "127.0.0.1"
LOG = Path("logs") / "seer-sgl-serve.log"  # seer-sgl writes the engines' logs to the same folder
TAIL_BYTES = 4096
POLL_S = 0.2
ANSWER_S = 5.0  # for one request for /health
STOP_S = 30.0  # for the server and its engines, before they are killed
# The server reads these two, whatever the variables of --seer.token_env are called.
SERVER_KEY, ADMIN_KEY = "SEER_SGL_SERVER_KEY", "SEER_SGL_ADMIN_KEY"
# Of the trainer's Python, which is another one than seer-sgl's.
NOT_FOR_SERVER = ("PYTHONPATH", "PYTHONHOME", FLAGS)
# Runs a command in its own place, after it has asked Linux for SIGTERM when the trainer is killed.
# The trainer has threads and cannot do it between fork and exec; 1 is PR_SET_PDEATHSIG.
LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


class ServeError(RuntimeError):
    """The server cannot be started or does not answer; the text is one line."""


@contextlib.contextmanager
def served(flags: SeerFlags) -> Iterator[str]:
    """Runs `seer-sgl serve` during the block, and yields its URL once it is ready.

    It listens on loopback only. If it ends during the block, a line is printed. Raises ServeError
    if it cannot be started, or is not ready within the flag timeout_s.
    """
    port = free_port(HOST)
    url = f"http://{HOST}:{port}"
    process = _start(flags, ["--host", HOST, "--port", str(port)])
    stopping = threading.Event()
    try:
        _wait_until_ready(process, url, flags.timeout_s)
        threading.Thread(target=_report_end, args=(process, stopping), daemon=True).start()
        yield url
    finally:
        stopping.set()
        _stop(process)


def require_health(url: str) -> None:
    """Raises ServeError unless the server at `url` answers that it is ready."""
    reason = _unhealthy(url)
    if reason is not None:
        raise ServeError(f"--seer.url: {url} is not ready: {reason}")


def server_environment(environment: Mapping[str, str], flags: SeerFlags) -> dict[str, str]:
    """Returns the server's environment, made from the trainer's."""
    kept = {name: value for name, value in environment.items() if name not in NOT_FOR_SERVER}
    for key, name in ((SERVER_KEY, flags.token_env), (ADMIN_KEY, flags.admin_token_env)):
        if name in environment:
            kept[key] = environment[name]
    return kept


def _start(flags: SeerFlags, address: Sequence[str]) -> subprocess.Popen[bytes]:
    environment = server_environment(os.environ, flags)
    program, *options = shlex.split(flags.command)
    if shutil.which(program, path=environment.get("PATH")) is None:
        raise ServeError(f"--seer.command: there is no program {program}")
    launcher = [sys.executable, "-I", "-c", LAUNCHER, str(os.getpid()), program, *options]
    with _new_log() as log:
        return subprocess.Popen(
            [*launcher, "serve", "--config", flags.config, *address],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the trainer, which ends the server
        )


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while _unhealthy(url) is not None:
        if process.poll() is not None:
            raise ServeError(_end_of(process))
        if time.monotonic() > deadline:
            raise ServeError(
                f"seer-sgl serve is not ready after {timeout_s:g} s: {_last_line()}; its log: {LOG}"
            )
        time.sleep(POLL_S)


def _report_end(process: subprocess.Popen[bytes], stopping: threading.Event) -> None:
    process.wait()
    if not stopping.is_set():
        print(f"seer-openrlhf: {_end_of(process)}", file=sys.stderr, flush=True)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the server, which ends its engines."""
    for number, patience in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, None)):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)  # the command may be a script that runs seer-sgl
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)


def _end_of(process: subprocess.Popen[bytes]) -> str:
    status = process.returncode
    how = f"with status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
    return f"seer-sgl serve ended {how}: {_last_line()}; its log: {LOG}"


def _last_line() -> str:
    with LOG.open("rb") as log:
        log.seek(max(0, LOG.stat().st_size - TAIL_BYTES))
        lines = log.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def _new_log() -> IO[bytes]:
    """Opens the log, which only its owner can read: servers print paths and settings."""
    try:
        LOG.parent.mkdir(parents=True, exist_ok=True)
        LOG.unlink(missing_ok=True)
        return os.fdopen(os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        raise ServeError(f"{LOG} cannot be written: {error.strerror}") from None


def _unhealthy(url: str) -> str | None:
    """Returns the reason why `/health` does not answer 200; None if it does."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/health", timeout=ANSWER_S):
            return None
    except urllib.error.HTTPError as error:
        return f"/health answers {error.code}"
    except urllib.error.URLError as error:
        return str(error.reason)
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
