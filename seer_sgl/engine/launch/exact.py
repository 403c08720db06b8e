"""The SGLang flags of `engines.exact`: engines whose steps of all kinds round alike.

On a GPU, SGLang decodes with another attention kernel than it prefills with. With deterministic
inference, its Triton backend prefills, continues and verifies with one kernel, so a plain step is a
verification too: of a draft with the root alone (docs/exactness.md).
"""

from collections.abc import Mapping

from seer_sgl.config import FlagValue, FleetConfig
from seer_sgl.errors import ConfigError
from seer_sgl.link.contract import ALGORITHM

from .rank_count import pipeline_size

DETERMINISTIC: Mapping[str, FlagValue] = {"enable-deterministic-inference": True}
ONE_KERNEL = "triton"  # the attention backend
BACKENDS = ("attention-backend", "prefill-attention-backend", "decode-attention-backend")
# For plain engines. SGLang counts the root as a draft token.
ROOT_ONLY: Mapping[str, FlagValue] = {
    "speculative-algorithm": ALGORITHM,
    "speculative-num-draft-tokens": 1,
}


def require_exact(config: FleetConfig, gpu: bool) -> None:
    """Raises ConfigError if `engines.exact` is set and engines of this config cannot be exact.

    gpu: whether the engines run on a GPU.
    """
    if not config.engines.exact or not gpu:
        return
    own = config.engines.flags()
    for name in BACKENDS:
        if own.get(name, ONE_KERNEL) != ONE_KERNEL:
            raise ConfigError(
                f"engines.sglang.{name}: {own[name]}, but engines.exact needs {ONE_KERNEL} on a GPU"
            )
    if pipeline_size(own) > 1:
        raise ConfigError("engines.sglang.pp-size: above 1, not with engines.exact on a GPU")
    draft = config.draft
    if draft.scope != "none" and (draft.paths or 1) > 1:
        raise ConfigError(
            f"draft.paths: {draft.paths} drafts trees, which are not exact on a GPU; "
            "engines.exact needs 1"
        )


def flags(config: FleetConfig, gpu: bool) -> dict[str, FlagValue]:
    """Returns the flags that make engines of the config exact; none without `engines.exact`."""
    if not config.engines.exact:
        return {}
    if not gpu:
        return {**DETERMINISTIC}
    plain = ROOT_ONLY if config.draft.scope == "none" else {}
    return {**DETERMINISTIC, "attention-backend": ONE_KERNEL, **plain}
