"""`seer-sgl serve`: opens the fleet, and serves until it is stopped."""

import asyncio
import contextlib
import gc
import logging
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from seer_sgl.config import Config, ServerConfig, StartedEngines, with_values
from seer_sgl.engine.launch.process import api_key
from seer_sgl.errors import ConfigError
from seer_sgl.processes.child import require_free_port
from seer_sgl.processes.loopback import is_loopback
from seer_sgl.rollout.rollout import Rollout

from .app import make_app
from .service import Service

logger = logging.getLogger(__name__)
connections = logging.getLogger(f"{__name__}.connections")  # what aiohttp reports
SERVER_KEY = "SEER_SGL_SERVER_KEY"  # environment variable: the bearer token of clients
ADMIN_KEY = "SEER_SGL_ADMIN_KEY"  # environment variable: the bearer token of the control plane
SHUTDOWN_S = 5.0  # for responses that are being written when the server stops
COLLECT_AFTER = 100_000  # new objects beyond those freed; 2,000 responses are about 150,000


async def serve(config: Config, log_dir: Path) -> None:
    """Serves the fleet of `config` until cancelled.

    Raises SeerError if the fleet or the address cannot be opened, and RolloutError if the driver
    has ended.
    """
    config = with_keys(config)
    server = config.server
    _require_token_beyond_loopback(server)
    require_free_port(server.port, "server.port", server.host)
    async with Rollout(config, log_dir=log_dir, gives_up=False) as rollout:
        service = Service(rollout)
        with rare_collections():
            async with serving(service) as url:
                logger.info("serving %d engines at %s", len(rollout.engines), url)
                await generating(service)


async def generating(service: Service) -> None:
    """Generates until cancelled; then requests in progress have `server.drain_s` to finish."""
    work = asyncio.create_task(service.generation.run())
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.create_task(service.drain(service.settings.drain_s))
        raise
    finally:
        work.cancel()
        await asyncio.wait({work})


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Makes Python search for garbage less often, and never in what start-up has made.

    A search looks at every response in progress, while all clients wait for it. Finished requests
    are freed without one: nothing that refers to itself is left of them.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()  # extension modules complain at exit about what is never collected


@contextlib.asynccontextmanager
async def serving(service: Service) -> AsyncIterator[str]:
    """Listens at the configured address, and yields the URL. Raises ConfigError if it cannot."""
    server = service.settings
    runner = web.AppRunner(
        make_app(service),
        access_log=None,
        handler_cancellation=True,  # a client that hangs up ends its requests
        shutdown_timeout=SHUTDOWN_S,
        keepalive_timeout=service.timing.idle_s,
        logger=connections,
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, server.host, server.port)
        try:
            await site.start()
        except OSError as error:  # the port was free before the engines started
            raise ConfigError(f"server.port: {error.strerror or error}") from error
        host, port = runner.addresses[0][:2]
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    finally:
        await runner.cleanup()
        service.close()


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Returns whether a record is no broken request or connection: clients could fill the log."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError | ConnectionError)


connections.addFilter(_is_worth_a_line)


def with_keys(config: Config) -> Config:
    """Returns the config with the tokens of the environment, which child processes do not get.

    The engines of a server with a token, and without a key of their own, get a drawn one: other
    users of the machine could reach them past the server. Raises ConfigError for a variable that
    is empty or no text.
    """
    server, engines = config.server, config.engines
    from_environment = {name: _token(name) for name in (SERVER_KEY, ADMIN_KEY)}
    keys = {
        "server.api_key": server.api_key or from_environment[SERVER_KEY],
        "server.admin_api_key": server.admin_api_key or from_environment[ADMIN_KEY],
    }
    if any(keys.values()) and isinstance(engines, StartedEngines) and api_key(engines) is None:
        keys["engines.api_key"] = secrets.token_urlsafe(32)
    return with_values(config, keys)


def _token(variable: str) -> str | None:
    token = os.environ.pop(variable, None)
    if token is None:
        return None
    if not token.strip():
        raise ConfigError(f"{variable}: an empty token")
    if not token.isprintable():  # a byte that is no UTF-8 is not either
        raise ConfigError(f"{variable}: a token has printable characters only")
    return token


def _require_token_beyond_loopback(server: ServerConfig) -> None:
    if server.api_key is None and not is_loopback(server.host):
        raise ConfigError(
            f"server.host: {server.host} is beyond loopback and needs a token: set {SERVER_KEY} or "
            "server.api_key"
        )
