"""Matrix products of Triton's interpreter with one order of terms.

The interpreter multiplies tiles with numpy, whose BLAS adds the terms of a row in an order that
depends on the row's place in the tile and on the processor. A GPU's matrix units add the terms of
every row alike. Here a product adds its terms one after the other, in float32.
"""

from typing import Any

import numpy as np
from triton.runtime import interpreter  # type: ignore[import-untyped]


def add_terms_in_order() -> None:
    """Replaces the interpreter's products. Half precisions are not supported."""
    interpreter.InterpreterBuilder.create_dot = _dot


def _dot(_: object, a: Any, b: Any, added: Any, *__: object) -> Any:
    if {a.data.dtype, b.data.dtype, added.data.dtype} != {np.dtype(np.float32)}:
        raise TypeError("products of float32 only")
    total = added.data.copy()
    for k in range(a.data.shape[1]):
        total += a.data[:, k, None] * b.data[None, k, :]
    return interpreter.TensorHandle(total, added.dtype.scalar)
