"""`seer-sgl drafthub`: the draft hub of one driver and its engines, in its own process."""

import asyncio

from seer_sgl.config import bytes_of
from seer_sgl.config.addresses import is_address
from seer_sgl.errors import ConfigError
from seer_sgl.processes.child import end_with_parent, require_free_port, stopping_signals

from .drafthub import DraftHub
from .server import open_link, shared_token

READY = "draft hub ready on"  # on standard output once it listens
MAX_DIGITS = 9  # of a port number; a longer one is refused before it is parsed


async def serve_hub(host: str, port: str, memory: str) -> None:
    """Serves the draft hub on host:port until SIGTERM, SIGINT or SIGHUP.

    `memory`: the limit for the tokens of all groups, such as `2gb`. Raises ConfigError for an
    invalid address or size, and if the environment has no token.
    """
    end_with_parent()
    token = shared_token("driver and the engines", "drafthub")
    if not port.isdecimal() or len(port) > MAX_DIGITS:
        raise ConfigError(f"drafthub: --port {port} is not a number")
    if not is_address(f"{host}:1"):
        raise ConfigError(f"drafthub: --host {host}: only host names and IPv4 addresses")
    try:
        size = bytes_of(memory)
    except ValueError as error:
        raise ConfigError(f"drafthub: --memory: {error}") from error
    require_free_port(int(port), "drafthub: --port", host)
    stopped = asyncio.Event()
    for number in stopping_signals():
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with open_link(host, int(port), token, DraftHub(size)) as link:
        print(f"{READY} {link.address}", flush=True)
        await stopped.wait()
