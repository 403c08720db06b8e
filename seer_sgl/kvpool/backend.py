"""The backend of a KV pool: `auto` becomes the backend that this machine can run."""

import logging

from seer_sgl.config import KvPoolConfig, with_values
from seer_sgl.processes import loopback

from .packages import load_problem

logger = logging.getLogger(__name__)


def resolved(config: KvPoolConfig) -> KvPoolConfig:
    """Returns the config with `mooncake` or `file` in place of `auto`; others are unchanged.

    Logs one warning with the reason if files replace Mooncake.
    """
    if config.backend != "auto":
        return config
    problem = load_problem() or _port_problem(config)
    if problem is None:
        return with_values(config, {"backend": "mooncake"})
    logger.warning(
        "kv_pool.backend: auto: %s; files serve as the KV pool instead "
        "(`seer-sgl doctor` names the repair)",
        problem,
    )
    return with_values(config, {"backend": "file", "open_ports": False})


def _port_problem(config: KvPoolConfig) -> str | None:
    """Returns the reason why Mooncake's ports would be open to other machines, or None."""
    if config.open_ports:
        return None
    why = loopback.refusal()
    return None if why is None else f"mooncake cannot stay on loopback: {why}"
