"""The SGLang flags of `engines.exact`: engines whose steps of all kinds round alike.

With deterministic inference, FlashAttention 3 prefills, continues, decodes and verifies with one
kernel. SGLang chooses it on Hopper. Its Triton backend decodes with another kernel, so with Triton
a plain step is a verification too: of a draft with the root alone (docs/exactness.md).
"""

from collections.abc import Mapping

from seer_sgl.config import FlagValue, FleetConfig
from seer_sgl.errors import ConfigError
from seer_sgl.link.contract import ALGORITHM

from .rank_count import pipeline_size

DETERMINISTIC: Mapping[str, FlagValue] = {"enable-deterministic-inference": True}
TRITON = "triton"
BACKENDS = ("fa3", TRITON)  # of the attention
BACKEND = "attention-backend"
BACKEND_FLAGS = (BACKEND, "prefill-attention-backend", "decode-attention-backend")
# For plain engines with Triton. SGLang counts the root as a draft token.
ROOT_ONLY: Mapping[str, FlagValue] = {
    "speculative-algorithm": ALGORITHM,
    "speculative-num-draft-tokens": 1,
}


def require_exact(config: FleetConfig, gpu: bool) -> None:
    """Raises ConfigError if `engines.exact` is set and engines of this config cannot be exact.

    gpu: whether the engines run on a GPU. What SGLang chooses itself is checked when they join.
    """
    if not config.engines.exact or not gpu:
        return
    own = config.engines.flags()
    given = {name: own[name] for name in BACKEND_FLAGS if name in own}
    for name, backend in given.items():
        if backend not in BACKENDS:
            raise ConfigError(
                f"engines.sglang.{name}: {backend}, but engines.exact needs "
                f"{' or '.join(BACKENDS)} on a GPU"
            )
        if backend != own.get(BACKEND, backend):
            raise ConfigError(
                f"engines.sglang.{name}: {backend}, but engines.exact needs one backend, and "
                f"engines.sglang.{BACKEND} is {own[BACKEND]}"
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
    with_triton = gpu and TRITON in map(config.engines.flags().get, BACKEND_FLAGS)
    root_only = with_triton and config.draft.scope == "none"
    return {**DETERMINISTIC, **(ROOT_ONLY if root_only else {})}
