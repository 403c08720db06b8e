"""Joins engines that already run, by their URLs."""

from typing_extensions import override

from seer_sgl.errors import ConfigError

from .launcher import EngineStart, Launcher


class ExternalLauncher(Launcher):
    """Joins servers and never ends one. `timeout_s`: until a server must answer."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    @override
    async def start(self, engine_id: str, url: str | None = None) -> EngineStart:
        if url is None:
            raise ConfigError("engines.launch: external starts no engines; join one by its URL")
        return EngineStart(engine_id, url.rstrip("/"), self._timeout_s)

    @override
    async def restart(self, engine_id: str, kv_tokens: int) -> EngineStart:
        raise ConfigError("engines.launch: external starts no engines")
