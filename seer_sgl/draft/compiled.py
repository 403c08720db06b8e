"""Typed access to numba: kernels that run without the GIL, and arrays at addresses."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])
Number = TypeVar("Number", np.int32, np.int64, np.float32)

# numba's cache detects a change in the file of the compiled function only, not in the files of the
# functions compiled into it. The qualified name, which is part of the cache key, adds their digest.
_SOURCES = hashlib.sha256(
    b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
).hexdigest()[:12]

# numba does not widen an int32 product or a value read from an array; these casts do. For mypy they
# return plain numbers.
int64 = cast(Callable[[Any], int], np.int64)
float64 = cast(Callable[[Any], float], np.float64)


def kernel(signature: str) -> Callable[[F], F]:
    """Compiles a function for numba types (`int64(int64[::1])`) at its definition, or loads it.

    The function runs without the GIL and checks no bounds. The compiled code is cached in
    NUMBA_CACHE_DIR, beside the source or in the user's cache directory. If none is writable, every
    process compiles it, which takes seconds.
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
    """Marks a part of kernels, compiled into each kernel that calls it."""
    return cast(F, numba.njit(nogil=True, forceinline=True)(function))


def _as_pointer(_: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return numba.types.voidptr(address), generate


_pointer = cast(Callable[[int], Any], intrinsic(_as_pointer))


def _prefetching(_: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        prefetches = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], kind)
        at = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        builder.call(prefetches, [at, number(0), number(3), number(1)])  # read, keep cached, data
        return context.get_dummy_value()

    return numba.types.void(address), generate


# Starts to load the cache line at an address, any address. For kernels only.
prefetch = cast(Callable[[int], None], intrinsic(_prefetching))


@part
def array_at(address: int, shape: tuple[int, ...], kind: type[Number]) -> NDArray[Number]:
    """Returns the array at an address. For kernels only.

    numba counts no references to it, as it does at every use of an array that it has made.
    """
    array: NDArray[Number] = numba.carray(_pointer(address), shape, kind)
    return array
