"""The SGLang flags of `engines.exact`: engines whose steps of all kinds round alike.

With deterministic inference, FlashAttention 3 prefills, continues, decodes and verifies with one
kernel, on Hopper in 16 bits. Elsewhere it is Triton, whose decode steps have another kernel, so
that a plain step is a verification too: of a draft with the root alone (docs/exactness.md).
"""

from collections.abc import Mapping

from seer_sgl.config import FlagValue, FleetConfig
from seer_sgl.errors import ConfigError
from seer_sgl.link.contract import ALGORITHM

from .process import hopper_visible
from .rank_count import pipeline_size

DETERMINISTIC: Mapping[str, FlagValue] = {"enable-deterministic-inference": True}
FA3, TRITON = "fa3", "triton"  # attention backends
BACKEND = "attention-backend"
OF_STEPS = ("prefill-attention-backend", "decode-attention-backend")
# For plain engines with Triton. SGLang counts the root as a draft token.
ROOT_ONLY: Mapping[str, FlagValue] = {
    "speculative-algorithm": ALGORITHM,
    "speculative-num-draft-tokens": 1,
}
REFUSED = ("enable-lora", "lora-paths", "enable-dp-attention", "enable-two-batch-overlap")
FLOAT32 = ("float32", "float")


def require_exact(config: FleetConfig, gpu: bool) -> None:
    """Raises ConfigError if `engines.exact` is set and engines of this config cannot be exact.

    gpu: whether the engines run on a GPU. What only a loaded engine shows is checked when it joins.
    """
    if not config.engines.exact or not gpu:
        return
    own = config.engines.flags()
    for name in (BACKEND, *OF_STEPS):
        backend = own.get(name, FA3)
        if backend not in (FA3, TRITON):
            raise ConfigError(
                f"engines.sglang.{name}: {backend}, but engines.exact needs {FA3} or {TRITON} on a "
                "GPU"
            )
        if name in OF_STEPS and name in own and backend != own.get(BACKEND):
            raise ConfigError(
                f"engines.sglang.{name}: {backend}, but engines.exact needs one backend: set "
                f"engines.sglang.{BACKEND} alone"
            )
    if pipeline_size(own) > 1:
        raise ConfigError("engines.sglang.pp-size: above 1, not with engines.exact on a GPU")
    for name in REFUSED:
        if own.get(name, False) is not False:
            raise ConfigError(f"engines.sglang.{name}: not with engines.exact on a GPU")
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
    own = config.engines.flags()
    backend = own.get(BACKEND)
    if backend is None:
        sixteen_bits = own.get("dtype") not in FLOAT32
        backend = FA3 if sixteen_bits and hopper_visible() else TRITON
    root_only = backend == TRITON and config.draft.scope == "none"
    return {**DETERMINISTIC, BACKEND: backend, **(ROOT_ONLY if root_only else {})}
