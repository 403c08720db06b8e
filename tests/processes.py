"""What other processes of this machine are, as far as a test needs it."""

import psutil


def command_of(process: psutil.Process) -> list[str]:
    """Returns a process's command line, or nothing once it has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # also a zombie
        return []
