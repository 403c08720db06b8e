"""Bounded number types for the config, a prompt's sampling and an engine's replies."""

from typing import Annotated

import msgspec

LARGEST = (1 << 63) - 1  # the limit of Python's counters and JSON readers
LARGEST_ID = (1 << 31) - 1  # token ids are int32 in SGLang

Positive = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_ID)]
Fraction = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
