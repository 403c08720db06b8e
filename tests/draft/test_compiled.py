"""Kernels compile even if no cache is writable."""

from typing import Any

import numba
import pytest

from seer_sgl.draft.compiled import kernel

SOURCE = "def double(number):\n    return 2 * number\n"


def test_a_kernel_without_a_place_for_its_cache_is_compiled_all_the_same() -> None:
    """numba finds no cache directory for a function without a file."""
    names: dict[str, Any] = {}
    exec(SOURCE, names)
    assert kernel("int64(int64)")(names["double"])(21) == 42


def test_a_kernel_that_does_not_compile_says_so() -> None:
    names: dict[str, Any] = {}
    exec("def broken(number):\n    return number.missing\n", names)
    with pytest.raises(numba.core.errors.TypingError):
        kernel("int64(int64)")(names["broken"])
