"""The seeded-sampling hash of the CPU stand-in is MurmurHash3, as in SGLang's own kernel."""

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.plugin.cpu import kernels


def murmur3_32(data: bytes) -> int:
    """Returns the hash by the published algorithm, seed 0, for 4-byte blocks and a tail."""

    def scramble(k: int) -> int:
        k = k * 0xCC9E2D51 & 0xFFFFFFFF
        k = (k << 15 | k >> 17) & 0xFFFFFFFF
        return k * 0x1B873593 & 0xFFFFFFFF

    h, blocks = 0, len(data) // 4 * 4
    for i in range(0, blocks, 4):
        h ^= scramble(int.from_bytes(data[i : i + 4], "little"))
        h = (h << 13 | h >> 19) & 0xFFFFFFFF
        h = (h * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= scramble(int.from_bytes(data[blocks:], "little"))
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


def test_the_reference_itself_gives_the_published_values() -> None:
    assert murmur3_32(b"test") == 0xBA6BD213
    assert murmur3_32(b"Hello, world!") == 0xC0363E43
    assert murmur3_32(b"The quick brown fox jumps over the lazy dog") == 0x2E4FF723


@given(
    seeds=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4),
    first_position=st.integers(0, 2**31),
    columns=st.lists(st.integers(0, 200_000), min_size=1, max_size=5),
)
def test_the_hash_is_murmur3_of_seed_position_and_column(
    seeds: list[int], first_position: int, columns: list[int]
) -> None:
    positions = [first_position + i for i in range(len(seeds))]
    hashed = kernels.murmur_hash32(
        torch.tensor(seeds, dtype=torch.int64).to(torch.uint64),
        torch.tensor(positions),
        torch.tensor(columns),
    )
    expected = [
        [murmur3_32(struct.pack("<QII", seed, position, column)) for column in columns]
        for seed, position in zip(seeds, positions, strict=True)
    ]
    assert hashed.dtype == torch.uint32
    assert hashed.tolist() == expected


def test_it_is_registered_where_sglang_calls_it() -> None:
    seed = torch.tensor([5], dtype=torch.int64).to(torch.uint64)
    column = torch.tensor([2])
    hashed = torch.ops.sgl_kernel.murmur_hash32_cpu.default(seed, torch.tensor([9]), column)
    assert hashed.item() == murmur3_32(struct.pack("<QII", 5, 9, 2))


def test_speculative_kernels_refuse_and_unknown_ones_do_not_exist() -> None:
    with pytest.raises(RuntimeError, match="draft models only"):
        kernels.fill_bonus_tokens_cpu()
    with pytest.raises(AttributeError, match="convert_weight_packed"):
        kernels.convert_weight_packed  # noqa: B018
