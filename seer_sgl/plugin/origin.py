"""What the driver says of a call, in the request's `custom_params`."""

from typing import Any

from seer_sgl.link.contract import ORIGIN

from .sglang_types import SglReq


def given_origin(req: SglReq) -> dict[str, Any]:
    """Returns the driver's words about the call, unchecked; empty if another client sent it."""
    return origin_in(req.sampling_params.custom_params)


def origin_in(params: object) -> dict[str, Any]:
    """Returns the driver's words in the `custom_params` of a call."""
    origin = params.get(ORIGIN) if isinstance(params, dict) else None
    return origin if isinstance(origin, dict) else {}
