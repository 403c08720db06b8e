"""SGLang's noise of seeded sampling, without torch.

SGLang draws the token with the greatest log probability plus Gumbel noise, and the noise is a hash
of (seed, position, column) (`multinomial_with_seed`, sglang/srt/layers/sampler.py). The column is
the token id where no request of the batch filters its tokens.
"""

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
_LOW_32 = np.uint64(0xFFFFFFFF)
_HIGHEST_LOG = -(2.0**-32)  # SGLang's bound of the logarithm, where the hash is the greatest


def murmur_hash32(seeds: U64, positions: U64, columns: U64) -> npt.NDArray[np.uint32]:
    """Returns MurmurHash3 (32 bit) of (seed, position, column), as in
    `sglang.kernels.ops.sampling.murmur_hash`.

    `seeds` and `positions` [rows], `columns` [columns]; the result is [rows, columns].
    """
    seeds = seeds[:, None]
    hashed = _mix(np.zeros_like(seeds), seeds & _LOW_32)
    hashed = _mix(hashed, seeds >> np.uint64(32))
    hashed = _mix(hashed, positions[:, None] & _LOW_32)
    hashed = _mix(hashed, columns[None, :] & _LOW_32)
    hashed = hashed ^ np.uint64(16)
    hashed ^= hashed >> np.uint64(16)
    hashed = (hashed * np.uint64(0x85EBCA6B)) & _LOW_32
    hashed ^= hashed >> np.uint64(13)
    hashed = (hashed * np.uint64(0xC2B2AE35)) & _LOW_32
    hashed ^= hashed >> np.uint64(16)
    return hashed.astype(np.uint32)


def gumbel(seed: int, position: int, token: int) -> float:
    """Returns the noise of one token, for the step whose last input token is at `position`."""
    hashed = murmur_hash32(
        np.array([seed & (1 << 64) - 1], np.uint64),
        np.array([position], np.uint64),
        np.array([token], np.uint64),
    )
    uniform = float(hashed[0, 0]) / float(np.iinfo(np.uint32).max)
    log = np.clip(np.log(uniform) if uniform else -np.inf, np.finfo(np.float64).min, _HIGHEST_LOG)
    return float(-np.log(-log))


def _rotate_left(x: U64, bits: int) -> U64:
    return ((x << np.uint64(bits)) | (x >> np.uint64(32 - bits))) & _LOW_32


def _mix(hashed: U64, block: U64) -> U64:
    """Does one round of MurmurHash3 (32 bit) on 32-bit values held in 64-bit integers."""
    block = (block * np.uint64(0xCC9E2D51)) & _LOW_32
    block = (_rotate_left(block, 15) * np.uint64(0x1B873593)) & _LOW_32
    hashed = _rotate_left(hashed ^ block, 13)
    return (hashed * np.uint64(5) + np.uint64(0xE6546B64)) & _LOW_32
