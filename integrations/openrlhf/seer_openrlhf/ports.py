"""Free TCP ports."""

import contextlib
import random
import socket

PORTS = range(20000, 32768)  # Linux takes the ports of outgoing connections from above these


def free_port(host: str) -> int:
    """Returns a port of this machine that nothing listens on. Raises OSError if there is none."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
    raise OSError(f"no free port from {PORTS.start} to {PORTS.stop - 1}")
