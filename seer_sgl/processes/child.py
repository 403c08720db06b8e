"""Child processes with a log file, which end together with all their own children.

A killed driver (SIGKILL) cannot end its children, so the children watch for its end themselves
(`end_with_parent`).
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from seer_sgl.errors import ConfigError

from . import shared_memory

# Environment variable of a child: the id of the process that it must not outlive.
PARENT_PID = "SEER_SGL_PARENT_PID"
PARENT_POLL_S = 1.0
PORTS = range(20000, 32768)  # outgoing connections begin at 32768 (Linux's ip_local_port_range)
LOOPBACK = "127.0.0.1"
_given: set[int] = set()  # ports that free_port has returned
_held: list[int] | None = None  # file descriptors that keep them from other processes
LOG_TAIL_LINES = 8
LAST_LINE_CHARS = 100
STOP_GRACE_S = 5.0
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOG_PATH = "; its log: "  # in the reason why a process ended
PRIVATE = 0o600  # the mode of logs: servers print requests, paths and settings


def free_port(host: str = LOOPBACK) -> int:
    """Returns a TCP port that is free on loopback and on `host`, an address of this machine.

    A server opens the port up to half a minute later. So the port is outside the system's range for
    outgoing connections, and is never returned twice. Raises ConfigError if there is none.
    """
    for port in random.sample(PORTS, len(PORTS)):
        if port not in _given and all(_is_free(port, address) for address in {LOOPBACK, host}):
            if _held is not None and not _hold(port):
                continue
            _given.add(port)
            return port
    raise ConfigError(f"no free port from {PORTS.start} to {PORTS.stop - 1}")


def _is_free(port: int, host: str) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def hold_ports() -> None:
    """Keeps the ports of `free_port` from all processes of this machine that called this too.

    The processes of two fleets start servers, and each actor of a Ray cluster one of many: without
    it, two of them may choose one port.
    """
    global _held  # noqa: PLW0603 (of the process, as _given)
    if _held is None:
        _held = []


def _hold(port: int) -> bool:
    """Takes the UDP port of the same number, which no server uses, until this process ends."""
    assert _held is not None
    lock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        lock.bind((LOOPBACK, port))
    except OSError:
        lock.close()
        return False
    _held.append(lock.detach())
    return True


def require_free_port(port: int, key: str, host: str = "127.0.0.1") -> None:
    """Raises ConfigError if `port` is in use, or if `host` is not an address of this machine.

    From then on `free_port` returns it no more: a server may open it after its engines' ports.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OverflowError as error:
            raise ConfigError(f"{key}: there is no port {port}") from error
        except OSError as error:
            where = f"port {port}" if host == "127.0.0.1" else f"{host}:{port}"
            raise ConfigError(f"{key}: {where}: {error.strerror}") from error
    _given.add(port)


def own_address(peer: str) -> str:
    """Returns this machine's address on the route to `peer` (host:port); 127.0.0.1 if unknown."""
    host, _, port = peer.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, int(port)))  # sends nothing, because it is a datagram socket
        except (OSError, OverflowError):
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def end_with_parent() -> None:
    """Ends the whole process group of this child process once its owner is gone."""
    parent = os.environ.get(PARENT_PID)
    if parent is not None:
        threading.Thread(target=_watch_parent, args=(int(parent),), daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    try:
        shared_memory.remove(shared_memory.mapped_by(_family(os.getpid())))
    finally:
        os.killpg(os.getpgid(0), signal.SIGKILL)


def stopping_signals() -> list[signal.Signals]:
    """Returns the signals that end our programs, without the ignored ones (`nohup`)."""
    return [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]


def open_log(path: Path) -> IO[bytes]:
    """Opens an empty file that only its owner can read; replaces an existing one.

    Raises ConfigError if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # it may belong to another user or be readable by others
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb")
    except OSError as error:
        raise ConfigError(f"log file {path}: {error.strerror}") from error


class OwnedProcess:
    """A running child process with its log file."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._shared_memory: set[Path] = set()
        self.log = log

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        cores: Sequence[int] | None = None,
    ) -> "OwnedProcess":
        """Starts a process in its own process group, pinned to `cores` if given.

        Raises ConfigError if the log cannot be written, and OSError if it cannot be started or
        pinned; then it does not run.
        """
        with open_log(log) as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env={**environment, PARENT_PID: str(os.getpid())},
                start_new_session=True,  # only the driver handles a Ctrl-C in the terminal
            )
        started = cls(process, log)
        if cores:
            try:
                os.sched_setaffinity(process.pid, cores)  # before it has threads or children
            except OSError:  # the cores of this machine or container may have changed
                await started.stop()
                raise
        return started

    @property
    def pid(self) -> int:
        """The process id, which is also the id of the process group."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """The exit status; None while the process runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Waits for the end of the process and returns its exit status."""
        return await self._process.wait()

    def exit_reason(self) -> str | None:
        """Returns how the process ended and the path of its log; None while it runs."""
        if self.exit_status is None:
            return None
        return f"its process ended with status {self.exit_status}{LOG_PATH}{self.log}"

    def note_shared_memory(self) -> None:
        """Records the shared memory of this process and its children, for removal in `stop`.

        Killed processes cannot remove it themselves.
        """
        self._shared_memory |= shared_memory.mapped_by(_family(self.pid))

    async def stop(self) -> None:
        """Ends the process and its child processes, and removes their shared memory."""
        if self.exit_status is not None and psutil.pid_exists(self.pid):
            # Linux uses an id again only when no process of its group is left.
            shared_memory.remove(self._shared_memory)
            return
        family = _family(self.pid)
        try:
            self.note_shared_memory()
            _signal_group(self.pid, signal.SIGTERM)
            # Not `wait_for`: Python 3.11's may swallow a cancellation at the end of the process.
            async with asyncio.timeout(STOP_GRACE_S):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            _signal_group(self.pid, signal.SIGKILL)
            for member in family:
                with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by now
                    member.kill()
        await self._process.wait()
        shared_memory.remove(self._shared_memory)


def log_tail(log: Path) -> str:
    """Returns the last non-empty lines of a log, indented, for an error message."""
    return "\n".join(f"    {line}" for line in _log_lines(log)[-LOG_TAIL_LINES:])


def last_line(log: Path) -> str:
    """Returns the last non-empty line of a log, cut to LAST_LINE_CHARS characters."""
    return (_log_lines(log) or ["nothing in its log yet"])[-1][:LAST_LINE_CHARS]


def _log_lines(log: Path) -> list[str]:
    try:
        text = log.read_text(errors="replace")
    except OSError as error:
        return [f"the log cannot be read: {error.strerror}"]
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return
