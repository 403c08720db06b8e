"""The number of ranks of one server, by the user's own SGLang flags."""

from collections.abc import Mapping

from seer_sgl.config import FlagValue

# SGLang's names of one flag each.
TENSOR_PARALLEL = ("tp-size", "tensor-parallel-size", "tp")
PIPELINE_PARALLEL = ("pp-size", "pipeline-parallel-size", "pp")


def ranks(own: Mapping[str, FlagValue]) -> int:
    """Returns the number of ranks of one server; each has its own GPU."""
    return _size(own, TENSOR_PARALLEL) * pipeline_size(own)


def pipeline_size(own: Mapping[str, FlagValue]) -> int:
    """Returns the number of pipeline stages of one server."""
    return _size(own, PIPELINE_PARALLEL)


def _size(own: Mapping[str, FlagValue], names: tuple[str, ...]) -> int:
    return int(str(next((own[name] for name in names if name in own), 1)))
