"""`seer-sgl serve` as a child process, started from its own environment for `--seer.config`."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .checks import ServeError, unhealthy
from .flags import FLAGS, SeerFlags
from .ports import free_port

HOST = "127.0.0.1"
LOGS = Path("logs")  # seer-sgl writes the engines' logs to the same folder
TAIL_BYTES = 4096
POLL_S = 0.2
STOP_S = 30.0  # for the server and its engines, before they are killed
# Before the server is restarted, by its ends in a row; the first one is for its engines, which
# end by themselves. An end after STEADY_S begins a new row.
PAUSES_S = (2.0, 4.0, 8.0, 16.0)
STEADY_S = 120.0
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


@contextlib.contextmanager
def served(flags: SeerFlags) -> Iterator[str]:
    """Runs `seer-sgl serve` during the block, and yields its URL once it is ready.

    It listens on loopback only. If it ends during the block, it is restarted at the same URL,
    unless the flag wait_s is 0. A line is printed when it is ready, and for each end and start.
    Raises ServeError if it cannot be started, or is not ready within the flag timeout_s.
    """
    port = free_port(HOST)
    child = _start(flags, port)
    try:
        url = f"http://{HOST}:{port}"
        child.wait_until_ready(url, flags.timeout_s)
    except BaseException:
        child.stop()
        raise
    _print(f"seer-sgl serve is ready at {url}; its log: {child.log}")
    keeper = EngineSupervisor(child, flags, port)
    try:
        yield url
    finally:
        keeper.stop()


def server_environment(environment: Mapping[str, str], flags: SeerFlags) -> dict[str, str]:
    """Returns the server's environment, made from the trainer's."""
    kept = {name: value for name, value in environment.items() if name not in NOT_FOR_SERVER}
    for key, name in ((SERVER_KEY, flags.token_env), (ADMIN_KEY, flags.admin_token_env)):
        if name in environment:
            kept[key] = environment[name]
    return kept


@dataclass(frozen=True)
class Child:
    """The server's process and the file that has its output."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait_until_ready(self, url: str, timeout_s: float) -> None:
        """Returns when `url` answers. Raises ServeError."""
        deadline = time.monotonic() + timeout_s
        while unhealthy(url) is not None:
            if self.process.poll() is not None:
                raise ServeError(self.end())
            if time.monotonic() > deadline:
                raise ServeError(
                    f"seer-sgl serve is not ready after {timeout_s:g} s: {self._last_line()}; "
                    f"its log: {self.log}"
                )
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Ends the server, which ends its engines."""
        for number, patience in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, None)):
            if self.process.poll() is not None:
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)  # the command may be a script that runs it
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)

    def end(self) -> str:
        """Returns how the process ended, in one line."""
        status = self.process.returncode
        how = f"with status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
        return f"seer-sgl serve ended {how}: {self._last_line()}; its log: {self.log}"

    def _last_line(self) -> str:
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError as error:  # somebody has removed it
            return f"the log cannot be read: {error.strerror}"
        return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


class EngineSupervisor:
    """A thread that restarts the server when it has ended, until `stop`."""

    def __init__(self, child: Child, flags: SeerFlags, port: int) -> None:
        self._child = child
        self._flags = flags
        self._port = port
        self._stopping = threading.Event()
        # Linux ends a child with the thread that has started it: this one lives as long.
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the server."""
        self._stopping.set()
        while self._thread.is_alive():
            self._child.stop()  # a new one, if the thread was starting it
            self._thread.join(POLL_S)

    def _keep(self) -> None:
        failures = 0
        while True:
            begun = time.monotonic()
            self._child.process.wait()
            if self._stopping.is_set():
                return
            _print(self._child.end())
            failures = 1 if time.monotonic() - begun > STEADY_S else failures + 1
            if not self._flags.wait_s:
                return
            if failures > len(PAUSES_S):
                _print(f"it is not restarted: it has ended {failures} times in a row")
                return
            if self._stopping.wait(PAUSES_S[failures - 1]):
                return
            try:
                self._child = _start(self._flags, self._port)
            except (ServeError, OSError) as error:
                _print(f"it cannot be restarted: {error}")
                return
            _print(f"seer-sgl serve is being restarted; its log: {self._child.log}")


def _start(flags: SeerFlags, port: int) -> Child:
    environment = server_environment(os.environ, flags)
    program, *options = shlex.split(flags.command)
    if shutil.which(program, path=environment.get("PATH")) is None:
        raise ServeError(f"--seer.command: there is no program {program}")
    launcher = [sys.executable, "-I", "-c", LAUNCHER, str(os.getpid()), program, *options]
    descriptor, path = _new_log()
    with os.fdopen(descriptor, "wb") as log:
        process = subprocess.Popen(
            [*launcher, "serve", "--config", flags.config, "--host", HOST, "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the trainer, which ends the server
        )
    return Child(process, path)


def _new_log() -> tuple[int, Path]:
    """Creates the log of this run. Only its owner can read it: servers print paths and settings."""
    begun_at = time.strftime("%Y%m%d-%H%M%S")
    try:
        LOGS.mkdir(parents=True, exist_ok=True)
        descriptor, path = tempfile.mkstemp(".log", f"seer-sgl-serve-{begun_at}-", LOGS)
    except OSError as error:
        raise ServeError(f"{LOGS}: a log cannot be written: {error.strerror}") from None
    return descriptor, LOGS / Path(path).name


def _print(text: str) -> None:
    print(f"seer-openrlhf: {text}", file=sys.stderr, flush=True)
