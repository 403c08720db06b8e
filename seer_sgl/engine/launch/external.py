"""Joins engines that already run, by their URLs."""

from typing_extensions import override

from seer_sgl.errors import ConfigError

from .launcher import EngineStart, Launcher

JOIN_TIMEOUT_S = 10.0  # the server is already up; this only covers a short network failure


class ExternalLauncher(Launcher):
    """Joins servers and never ends one."""

    @override
    async def start(self, engine_id: str, url: str | None = None) -> EngineStart:
        if url is None:
            raise ConfigError("engines.launch: external starts no engines; join one by its URL")
        return EngineStart(engine_id, url.rstrip("/"), JOIN_TIMEOUT_S)

    @override
    async def start_again(self, engine_id: str, kv_tokens: int) -> EngineStart:
        raise ConfigError("engines.launch: external starts no engines")

    @override
    async def stop(self, engine_id: str) -> None:
        return

    @override
    async def aclose(self) -> None:
        return
