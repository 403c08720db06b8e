"""Grouped drafting as an engine is started with it: SGLang's flags and the plugin's environment."""

from seer_sgl.config import DraftConfig, FlagValue

from .link import link_url
from .plugin import drafting
from .plugin.frames import HUB_URL


def flags(config: DraftConfig) -> dict[str, FlagValue]:
    """SGLang flags; none without drafting. SGLang counts the root among the draft tokens."""
    if config.scope == "none":
        return {}
    return {
        "speculative-algorithm": drafting.ALGORITHM,
        "speculative-num-draft-tokens": config.max_draft_tokens + 1,
    }


def environment(config: DraftConfig) -> dict[str, str]:
    """Environment of an engine's process; empty without drafting."""
    if config.scope == "none":
        return {}
    settings = drafting.Settings(
        config.scope, config.max_draft_tokens, config.paths, config.memory_bytes()
    )
    given = {drafting.DRAFT: drafting.encode(settings)}
    if config.hub is not None:
        given[HUB_URL] = link_url(config.hub)
    return given
