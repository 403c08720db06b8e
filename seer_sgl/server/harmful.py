"""What ends an engine: requests that SGLang 0.5.21 accepts and that stop its scheduler. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from seer_sgl.driver.checks import unservable
from seer_sgl.types import EngineInfo, Sampling

from .errors import BadRequest


def require_harmless(
    fields: Mapping[str, msgspec.Raw], known: Mapping[str, Any], engines: Sequence[EngineInfo]
) -> None:
    """Raises BadRequest for a request that would end one of the engines.

    fields: all fields of the request. `known`: the values of those that the server reads.
    """
    _require_in_vocabulary(known["input_ids"], engines[0].vocab_size)
    parameters = known["sampling_params"]
    for params in parameters if isinstance(parameters, list) else [parameters]:
        if isinstance(params, dict):
            _require_servable_min_p(params.get("min_p"), engines)


def _require_in_vocabulary(ids: Any, vocab_size: int | None) -> None:
    for each in ids if isinstance(ids, list) else ():
        if isinstance(each, list):
            _require_in_vocabulary(each, vocab_size)
        elif isinstance(each, int) and (
            each < 0 or (vocab_size is not None and each >= vocab_size)
        ):
            raise BadRequest(f"input_ids: token id {each} is outside the vocabulary")


def _require_servable_min_p(min_p: Any, engines: Sequence[EngineInfo]) -> None:
    if isinstance(min_p, int | float) and min_p > 0:
        for name, why in unservable(Sampling(min_p=min_p), engines, tokenizer=True):
            raise BadRequest(f"{name}: {why}")
