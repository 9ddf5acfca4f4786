"""The random bytes of stochastic rounding for a tile, as Triton functions: `repro/numerics/random_bits.py` on a GPU.

Paper section 4.4. Philox4x32-10; counter = linear index // 16, byte = linear index % 16.

Does not: choose seeds.
"""

# ruff: noqa: ANN001, ANN201, ANN202
# Triton functions: the types of their arguments are Triton's.
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def random_steps(
    seed_low, seed_high, rows, first_column, num_columns, MANTISSA_BITS: tl.constexpr,
    NATIVE: tl.constexpr, ALIGNED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """byte / 256 * 2^-mantissa for the bytes of `random_bits` of elements (rows[i], first_column + j).

    FP32 [ROWS, COLUMNS]; times a number's power of two this is the noise in steps of its format.
    ALIGNED: num_columns and COLUMNS are multiples of 16, so that one Philox call serves 16 neighbours in a row.
    """
    POWER: tl.constexpr = (127 + 15 - MANTISSA_BITS) << 23  # bits of 2^(15 - mantissa)
    if ALIGNED:
        words = random_words(seed_low, seed_high, rows, first_column, num_columns, ROWS, COLUMNS)
        words, position = words[:, :, None], tl.arange(0, 4)[None, None, :]
        # The byte as the lowest mantissa bits of a power of two, which is taken off: cheaper than a conversion.
        if NATIVE:
            bits = tl.inline_asm_elementwise(
                "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r",
                [words.to(tl.int32, bitcast=True), tl.full((1, 1, 1), POWER, tl.int32), position + 0x7650],
                dtype=tl.int32, is_pure=True, pack=1,
            )  # fmt: skip
        else:
            bits = ((words >> (position * 8).to(tl.uint32)) & 255) | POWER
        bits = tl.reshape(bits, (ROWS, COLUMNS))
    else:
        linear = rows[:, None] * num_columns + (first_column + tl.arange(0, COLUMNS))[None, :]
        w0, w1, w2, w3 = _philox(linear >> 4, seed_low, seed_high)
        index = (linear & 15).to(tl.uint32)
        word = tl.where(index < 4, w0, tl.where(index < 8, w1, tl.where(index < 12, w2, w3)))
        bits = ((word >> ((index & 3) * 8)) & 255) | POWER
    return bits.to(tl.float32, bitcast=True) - 2.0 ** (15 - MANTISSA_BITS)


@triton.jit
def random_words(
    seed_low, seed_high, rows, first_column, num_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The words, of four bytes each, for such a tile: [ROWS, COLUMNS / 4]."""
    groups = first_column // 16 + tl.arange(0, COLUMNS // 16)
    block = rows[:, None] * (num_columns // 16) + groups[None, :]
    w0, w1, w2, w3 = _philox(block, seed_low, seed_high)
    return tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (ROWS, COLUMNS // 4))


@triton.jit
def _philox(block, seed_low, seed_high):
    """Four words for each block index (int64)."""
    c0, c1 = (block & 0xFFFFFFFF).to(tl.uint32), (block >> 32).to(tl.uint32)
    c2 = tl.zeros_like(c0)
    c3 = c2
    k0, k1 = seed_low, seed_high
    for _ in tl.static_range(10):
        # 64-bit products are one instruction each; `tl.philox` takes two for the two halves.
        product0, product1 = c0.to(tl.uint64) * 0xD2511F53, c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (product1 >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (product0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c1, c3 = (product1 & 0xFFFFFFFF).to(tl.uint32), (product0 & 0xFFFFFFFF).to(tl.uint32)
        k0 = tl.add(k0, 0x9E3779B9, sanitize_overflow=False)
        k1 = tl.add(k1, 0xBB67AE85, sanitize_overflow=False)
    return c0, c1, c2, c3
