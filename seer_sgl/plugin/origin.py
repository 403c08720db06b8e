"""What the driver says of a call, in the request's `custom_params`."""

from typing import Any

from seer_sgl.link.contract import ORIGIN

from .sglang_types import SglReq


def given_origin(req: SglReq) -> dict[str, Any]:
    """Returns the driver's words about the call, unchecked; empty if another client sent it."""
    params = req.sampling_params.custom_params
    origin = params.get(ORIGIN) if isinstance(params, dict) else None
    return origin if isinstance(origin, dict) else {}
