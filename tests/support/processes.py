"""What other processes of this machine are, as far as a test needs it."""

import os
import time

import psutil

from seer_sgl.processes.child import PARENT_PID


def lives(process: psutil.Process) -> bool:
    """Returns whether a process runs, and is no zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two questions
        return False


def command_of(process: psutil.Process) -> list[str]:
    """Returns a process's command line, or nothing once it has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # also a zombie
        return []


def child(word: str) -> psutil.Process:
    """Returns the child of this process with that word in its command line.

    Raises ProcessLookupError if there is none.
    """
    for process in psutil.Process().children():
        if word in command_of(process):
            return process
    raise ProcessLookupError(word)


def owned_by(driver: int) -> list[psutil.Process]:
    """Returns the processes that a process has started, by the PARENT_PID in their environment;
    their own children too."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(PARENT_PID) == str(driver):
                found.append(process)
        except psutil.Error:
            continue
    return found


def owned() -> list[int]:
    """Returns the ids of the processes that this one has started."""
    return [process.pid for process in owned_by(os.getpid())]


def assert_nothing_left(driver: int, within_s: float) -> None:
    """Waits until all processes that a process has started have ended."""
    deadline = time.monotonic() + within_s
    while (left := owned_by(driver)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
