"""The number of ranks of one server, by the user's own SGLang flags."""

import re
from collections.abc import Mapping

from seer_sgl.config import FlagValue
from seer_sgl.config.engines import PIPELINE_PARALLEL
from seer_sgl.errors import ConfigError

# SGLang's names of one flag each.
TENSOR_PARALLEL = ("tp-size", "tensor-parallel-size", "tp")
DATA_PARALLEL = ("dp-size", "data-parallel-size", "dp")
DP_ATTENTION = "enable-dp-attention"


def ranks(own: Mapping[str, FlagValue]) -> int:
    """Returns the number of ranks of one server; each has its own GPU."""
    return copies(own) * _size(own, TENSOR_PARALLEL) * pipeline_size(own)


def copies(own: Mapping[str, FlagValue]) -> int:
    """Returns how many copies of the model one server has: a group of ranks each.

    With DP attention the data-parallel ranks are those of one copy.
    """
    return 1 if own.get(DP_ATTENTION) else _size(own, DATA_PARALLEL)


def pipeline_size(own: Mapping[str, FlagValue]) -> int:
    return _size(own, PIPELINE_PARALLEL)


def _size(own: Mapping[str, FlagValue], names: tuple[str, ...]) -> int:
    """Returns the value of a flag of so many names. Raises ConfigError if it is no number."""
    name = next((name for name in names if name in own), None)
    size = "1" if name is None else str(own[name])
    if not re.fullmatch("[1-9][0-9]{0,5}", size):
        raise ConfigError(f"engines.sglang.{name}: {size} is not a number of 1 or more")
    return int(size)
