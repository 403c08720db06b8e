"""A running Mooncake, as a client in a process of its own sees it: its threads do not end."""

import asyncio
from pathlib import Path

from seer_sgl.config import KvPoolConfig
from seer_sgl.errors import ConfigError
from seer_sgl.kvpool.mooncake import open_mooncake

DEADLINE_S = 300.0


async def has_memory(master: str, logs: Path) -> bool:
    """Returns whether an object can be put into the pool and read."""
    try:
        async with open_mooncake(KvPoolConfig(backend="mooncake", master=master), logs):
            return True
    except ConfigError:
        return False


async def until_it_stores(master: str, logs: Path) -> None:
    """Waits until the pool has memory: after the death of nodes, until they are replaced."""
    async with asyncio.timeout(DEADLINE_S):
        while not await has_memory(master, logs):
            pass  # the master may offer lost memory for some seconds
