"""Bounded number types for the config, a prompt's sampling and an engine's replies."""

from typing import Annotated

import msgspec

LARGEST = (1 << 63) - 1  # the limit of Python's counters and JSON readers
LARGEST_ID = (1 << 31) - 1  # token ids are int32 in SGLang

Positive = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_ID)]
Fraction = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Int64 = Annotated[int, msgspec.Meta(ge=-LARGEST - 1, le=LARGEST)]
# SGLang divides logits by temperatures as small as 1e-6; beyond this they overflow a float32.
HIGHEST_REAL = 1e20
Real = Annotated[float, msgspec.Meta(ge=-HIGHEST_REAL, le=HIGHEST_REAL)]
# The values that SGLang's scheduler decodes; another one crashes it (SamplingParams.custom_params).
Scalar = bool | Int64 | float | str | None
CustomParams = dict[str, Scalar | list[Scalar] | dict[str, Scalar]]
