"""numba behind types: kernels that run without the GIL, and arrays at addresses."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])

# numba's cache notices a change in the file of the compiled function only, not in those of the
# functions compiled into it. It names a function's entries by its qualified name.
_SOURCES = hashlib.sha256(
    b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
).hexdigest()[:12]

# numba keeps an int32 times an int32, and what is read from an array, as narrow as it was. To mypy
# these are numbers like any other.
int64 = cast(Callable[[Any], int], np.int64)
float64 = cast(Callable[[Any], float], np.float64)


def kernel(signature: str) -> Callable[[F], F]:
    """Compile a function for numba types (`int64(int64[::1])`), or load it, when it is defined.

    It runs without the GIL and checks no bounds. The compiled code is kept in NUMBA_CACHE_DIR,
    beside the source or in the user's cache directory; where none can be written it is compiled
    in every process, which takes seconds.
    """

    def compiled(function: F) -> F:
        function.__qualname__ += f"_{_SOURCES}"
        try:
            return cast(F, numba.njit(signature, nogil=True, cache=True)(function))
        except RuntimeError as error:
            if "no locator available" not in str(error):
                raise
            return cast(F, numba.njit(signature, nogil=True)(function))

    return compiled


def part(function: F) -> F:
    """A piece of kernels: compiled into each that calls it."""
    return cast(F, numba.njit(nogil=True, forceinline=True)(function))


def _as_pointer(_: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return numba.types.voidptr(address), generate


_pointer = cast(Callable[[int], Any], intrinsic(_as_pointer))


@part
def int32_at(address: int, shape: tuple[int, ...]) -> NDArray[np.int32]:
    """The int32 array that lies at an address. For kernels only."""
    array: NDArray[np.int32] = numba.carray(_pointer(address), shape, np.int32)
    return array
