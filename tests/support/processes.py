"""What other processes of this machine are, as far as a test needs it."""

import psutil


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
