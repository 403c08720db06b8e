"""The names of pages are those of SGLang's C++ extension, for any key."""

import importlib.util
import os
import random
import subprocess
import sys
from array import array
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.plugin.page_hash import PageHash

# Computed by the extension of SGLang 0.5.21: see test_names_of_a_known_chain.
PAGES = [
    "01acecb507abfe1a354aa8064f4af5d3f1acd019e37db3c11c97523b71c76e9d",
    "afb62248697e7cd64d304bd33f33f85a1de57f083cfc223303a6de73abde66df",
    "e78fef600e36964014776f8c14854eb5c66c3bd06068c7fec5b4a52989e8938e",
]
WHOLE = "e528f4309e1413e6bc35aea5d8db8519384d2fcc33f9dd5d1126d73f104cf92a"
BIGRAMS = [
    "c5ecd9e27b3a7bc4afdb37ddb3f5a7cdf4a3cc7176e2911e1836405d8b10299f",
    "c6e3cdb7abbe600818aaa81ca87de55021ae21203b0ad1ada035cd16ca3d203b",
]

TOKEN = st.integers(0, 2**32 - 1)
# Builds SGLang's extension and prints its answers to the keys on standard input.
_NATIVE = """
import sys
from array import array
import msgspec
from seer_sgl.plugin import cpu
cpu.prepare()
from sglang.srt.mem_cache.cpp_utils.native_hash import _load_native_hash_module
native = _load_native_hash_module()
keys = msgspec.msgpack.decode(sys.stdin.buffer.read())
answers = [
    native.get_hash(array(code, tokens), length, unit, bigram, prior, page)
    for code, tokens, length, unit, bigram, prior, page in keys
]
sys.stdout.buffer.write(msgspec.msgpack.encode(answers))
"""


def get(tokens: "array[int]", *args: Any) -> Any:
    return PageHash().get_hash(tokens, *args)


def test_names_of_a_known_chain() -> None:
    tokens = array("q", range(5))
    assert get(tokens, 5, 1, False, None, 2) == PAGES
    assert get(tokens, 5, 1, False, None, None) == WHOLE
    assert get(tokens, 4, 2, True, b"\x01" * 32, 3) == BIGRAMS


@given(st.lists(TOKEN, max_size=64), st.integers(1, 16), st.sampled_from("Iq"))
def test_a_chain_of_pages_continues_from_the_last_digest(
    tokens: list[int], page: int, code: str
) -> None:
    key = array(code, tokens)
    whole = get(key, len(key), 1, False, None, page)
    for pages in range(1, len(whole)):
        prior = bytes.fromhex(whole[pages - 1])
        rest = key[pages * page :]
        assert get(rest, len(rest), 1, False, prior, page) == whole[pages:]


@given(st.lists(TOKEN, min_size=1, max_size=64), st.integers(1, 16))
def test_the_width_of_the_array_does_not_matter(tokens: list[int], page: int) -> None:
    narrow, wide = array("I", tokens), array("Q", tokens)
    length = len(tokens) - 1
    for args in ((len(tokens), 1, False, None, page), (length, 2, True, None, page)):
        assert get(narrow, *args) == get(wide, *args)


def test_a_token_beyond_32_bits_is_an_error() -> None:
    with pytest.raises(IndexError, match="uint32"):
        get(array("q", [2**32]), 1, 1, False, None, 16)


@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs SGLang")
@pytest.mark.process
def test_equals_the_extension_of_sglang() -> None:
    draw = random.Random(7)
    keys = []
    for _ in range(2000):
        bigram = draw.random() < 0.3
        unit = 2 if bigram else draw.choice((1, 1, 2, 3))
        length = draw.choice((0, 1, draw.randrange(200)))
        count = length + 1 if bigram and length else length * unit
        tokens = [draw.randrange(2**32) for _ in range(count + draw.randrange(3))]
        prior = draw.choice((None, draw.randbytes(32)))
        page = draw.choice((None, 1, 16, 64, draw.randrange(1, 70)))
        keys.append((draw.choice("IqQ"), tokens, length, unit, bigram, prior, page))
    run = subprocess.run(
        [sys.executable, "-c", _NATIVE],
        input=msgspec.msgpack.encode(keys),
        env={**os.environ, "SGLANG_USE_CPU_ENGINE": "1"},
        capture_output=True,
        check=False,
    )
    if run.returncode and b"Failed to load HiCache native hash" in run.stderr:
        pytest.skip("SGLang's extension cannot be built on this machine")
    assert run.returncode == 0, run.stderr.decode()
    expected = msgspec.msgpack.decode(run.stdout)
    assert expected == [get(array(code, tokens), *rest) for code, tokens, *rest in keys]
