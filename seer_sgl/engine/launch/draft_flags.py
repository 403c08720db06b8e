"""Grouped drafting as an engine is started with it: SGLang's flags and the plugin's environment."""

from seer_sgl.config import DraftConfig, FlagValue
from seer_sgl.link import contract
from seer_sgl.link.contract import HUB_URL
from seer_sgl.link.server import link_url


def flags(config: DraftConfig) -> dict[str, FlagValue]:
    """SGLang flags; none without drafting. SGLang counts the root among the draft tokens."""
    if config.scope == "none":
        return {}
    return {
        "speculative-algorithm": contract.ALGORITHM,
        "speculative-num-draft-tokens": config.max_draft_tokens + 1,
    }


def environment(config: DraftConfig) -> dict[str, str]:
    """Environment of an engine's process; empty without drafting."""
    if config.scope == "none":
        return {}
    settings = contract.DraftSettings(
        config.scope, config.max_draft_tokens, config.paths, config.memory_bytes()
    )
    given = {contract.DRAFT: settings.encoded()}
    if config.hub is not None:
        given[HUB_URL] = link_url(config.hub)
    return given
