"""Packing of samples, which needs the real flash-attn: every call raises."""

from typing import NoReturn

from einops import rearrange

__all__ = ["index_first_axis", "pad_input", "rearrange", "unpad_input"]


def _refuse(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("flash-attn is not installed: leave --ds.packing_samples out")


index_first_axis = pad_input = unpad_input = _refuse
