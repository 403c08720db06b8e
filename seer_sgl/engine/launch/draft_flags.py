"""The SGLang flags and plugin environment that start an engine with grouped drafting."""

from seer_sgl.config import DraftConfig, FlagValue, bytes_of
from seer_sgl.link import contract
from seer_sgl.link.contract import HUB_URL
from seer_sgl.link.server import link_urls


def flags(config: DraftConfig) -> dict[str, FlagValue]:
    """Returns SGLang's flags; empty without drafting. SGLang counts the root as a draft token."""
    if config.scope == "none":
        return {}
    return {
        "speculative-algorithm": contract.ALGORITHM,
        "speculative-num-draft-tokens": config.max_draft_tokens + 1,
    }


def environment(config: DraftConfig, exact: bool) -> dict[str, str]:
    """Returns the environment variables of an engine's process; empty without drafting.

    exact: `engines.exact`.
    """
    if config.scope == "none":
        return {}
    settings = contract.DraftSettings(
        config.scope, config.max_draft_tokens, config.paths, bytes_of(config.memory), exact
    )
    variables = {contract.DRAFT: settings.encoded()}
    if config.hub is not None:
        variables[HUB_URL] = link_urls(config.hub)
    return variables
