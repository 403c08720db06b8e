"""Routed experts of mixture-of-experts models: which experts each token went to, in every layer.

A trainer replays them (router replay, R3). Row i belongs to the token at position i of prompt and
response: the input from which token i + 1 was sampled. So n tokens have n - 1 rows.

A response of 32k tokens with 60 layers and 8 experts per token has 15.7 million values. They stay
bytes on the whole way, one or two per value, and are never Python objects.
"""

import binascii
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Size = Annotated[int, msgspec.Meta(gt=0, le=1 << 15)]
DType = Literal["uint8", "int16"]
BYTE = 256  # values of a byte
# Bytes that are encoded at once, a multiple of three: other threads run between two pieces.
PIECE = 3 << 18


class ExpertShape(msgspec.Struct, frozen=True):
    """The form of the rows of a model. `experts`: every value is below it."""

    layers: Size
    top_k: Size
    experts: Size

    @property
    def dtype(self) -> DType:
        """The smallest type that has all values."""
        return "uint8" if self.experts <= BYTE else "int16"

    @property
    def row_bytes(self) -> int:
        """The size of one row."""
        return self.layers * self.top_k * np.dtype(self.dtype).itemsize


class RoutedExperts(msgspec.Struct, kw_only=True):
    """Rows of routed experts. In JSON `data` is base64.

    dtype: of a value, numpy's name; little-endian. shape: rows, layers, experts per token. `data`:
    row after row.
    """

    dtype: DType
    shape: tuple[int, int, int]
    data: bytearray

    @classmethod
    def of(cls, rows: Any, shape: ExpertShape) -> "RoutedExperts":
        """Returns whole rows, copied. rows: bytes. Raises ValueError for values that are none."""
        data = bytearray(rows)
        values = np.frombuffer(data, shape.dtype)
        if len(data) % shape.row_bytes:
            raise ValueError(f"{len(data)} bytes are no rows of {shape.row_bytes} bytes")
        if len(values) and not 0 <= values.min() <= values.max() < shape.experts:
            raise ValueError(f"a token went to expert {values.max()} of {shape.experts}")
        count = len(data) // shape.row_bytes
        return cls(dtype=shape.dtype, shape=(count, shape.layers, shape.top_k), data=data)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.shape[0]

    def first(self, count: int) -> "RoutedExperts":
        """Returns a copy of the first rows."""
        size = len(self.data) // self.rows * count if self.rows else 0
        return RoutedExperts(
            dtype=self.dtype, shape=(count, *self.shape[1:]), data=self.data[:size]
        )

    def append(self, more: "RoutedExperts") -> None:
        """Appends rows. Raises ValueError if they have another form."""
        if (more.dtype, more.shape[1:]) != (self.dtype, self.shape[1:]):
            raise ValueError(
                f"routed experts of form {more.shape[1:]} {more.dtype} after {self.shape[1:]} "
                f"{self.dtype}"
            )
        self.data += more.data
        self.shape = (self.rows + more.rows, *self.shape[1:])

    def json(self) -> dict[str, Any]:
        """Returns what msgspec encodes to the same JSON, without one long call for the data."""
        data = msgspec.Raw(b'"%b"' % base64_of(self.data))
        return {"dtype": self.dtype, "shape": self.shape, "data": data}

    def array(self) -> NDArray[Any]:
        """Returns the values, [rows, layers, top_k], without a copy."""
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


def base64_of(content: Any) -> bytes:
    """Returns the base64 of bytes or of an array."""
    view = memoryview(content).cast("B")
    pieces = (view[at : at + PIECE] for at in range(0, len(view), PIECE))
    return b"".join(binascii.b2a_base64(piece, newline=False) for piece in pieces)
