"""The Hadamard transform of a tile in registers, and rounding to BF16, as Triton functions.

Paper section 4.2 and Appendix C; the order of the FP32 operations is that of `repro/numerics/hadamard.py`. A round of
additions is a reshape that brings partners together, a split, a sum and a difference. Where each thread holds whole
groups (tiles of 16 rows by 256 columns a warp) these move no data.

Does not: load the tile, or know blocks.
"""

# ruff: noqa: ANN001, ANN201, ANN202
# Triton functions: the types of their arguments are Triton's.
from __future__ import annotations

import triton
import triton.language as tl

from repro.numerics.gpu.arithmetic import INTERPRETED


@triton.jit
def _butterfly_rows(v, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr):
    w = tl.permute(tl.reshape(v, (ROWS // (2 * STRIDE), 2, STRIDE, COLUMNS)), (0, 2, 3, 1))
    low, high = tl.split(w)
    w = tl.permute(tl.join(low + high, low - high), (0, 3, 1, 2))
    return tl.reshape(w, (ROWS, COLUMNS))


@triton.jit
def _butterfly_columns(v, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr):
    w = tl.permute(tl.reshape(v, (ROWS, COLUMNS // (2 * STRIDE), 2, STRIDE)), (0, 1, 3, 2))
    low, high = tl.split(w)
    w = tl.permute(tl.join(low + high, low - high), (0, 1, 3, 2))
    return tl.reshape(w, (ROWS, COLUMNS))


@triton.jit
def _first_round_rows(v, signs, COPY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Signs, factor and first round of BF16 numbers along the rows: products are exact, so that they need not be
    rounded before they are added. No result is -0."""
    w = tl.permute(tl.reshape(v, (ROWS // 2, 2, COLUMNS)), (0, 2, 1))
    low, high = tl.split(w)
    if COPY.has_signs:
        pair = tl.arange(0, ROWS // 2) * 2 % COPY.hadamard
        s0, s1 = tl.load(signs + pair)[:, None], tl.load(signs + pair + 1)[:, None]
        s0, s1 = s0 * COPY.factor_before, s1 * COPY.factor_before
    else:
        s0 = tl.zeros((ROWS // 2, 1), tl.float32) + COPY.factor_before
        s1 = s0
    low = tl.fma(low, s0, tl.zeros_like(low))
    w = tl.permute(tl.join(tl.fma(high, s1, low), tl.fma(high, -s1, low)), (0, 2, 1))
    return tl.reshape(w, (ROWS, COLUMNS))


@triton.jit
def _butterflies(
    v, signs, COPY: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    FROM_BF16: tl.constexpr,
):  # fmt: skip
    """Signs, factor, and the additions of the transform; LAST 2 leaves the last round of these out, 1 none."""
    FUSED: tl.constexpr = FROM_BF16 and COPY.along == 0 and COPY.hadamard // LAST > 1
    if FUSED:
        v = _first_round_rows(v, signs, COPY, ROWS, COLUMNS)
    elif COPY.has_signs:
        if COPY.along == 0:
            s = tl.load(signs + tl.arange(0, ROWS) % COPY.hadamard)[:, None]
        else:
            s = tl.load(signs + tl.arange(0, COLUMNS) % COPY.hadamard)[None, :]
        v = v * (s * COPY.factor_before)  # a sign times a power of two: one exact factor
    else:
        v = v * COPY.factor_before
    for k in tl.static_range(7):
        if 2**k < COPY.hadamard // LAST and not (FUSED and k == 0):
            if COPY.along == 0:
                v = _butterfly_rows(v, ROWS, COLUMNS, 2**k)
            else:
                v = _butterfly_columns(v, ROWS, COLUMNS, 2**k)
    return v


@triton.jit
def rotate_tile(
    v, signs, COPY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FROM_BF16: tl.constexpr = False
):
    """The transform of whole groups of a tile, before it is rounded to BF16. `signs`: FP32 [hadamard]."""
    v = _butterflies(v, signs, COPY, 1, ROWS, COLUMNS, FROM_BF16)
    if COPY.factor_after != 1.0:
        v = v * COPY.factor_after
    return v


@triton.jit
def last_round(
    v, signs, COPY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FROM_BF16: tl.constexpr = False
):
    """The larger magnitude of each pair a + b, a - b of the transform's last round, before `factor_after`: that is
    |a| + |b|, rounded alike. [outer, inner], inner the tensor's columns, or half of them along the columns.
    Where it is infinite, the transform may hold a NaN (inf - inf) instead."""
    v = _butterflies(v, signs, COPY, 2, ROWS, COLUMNS, FROM_BF16)
    HALF: tl.constexpr = COPY.hadamard // 2
    if COPY.along == 0:
        w = tl.permute(tl.reshape(v, (ROWS // COPY.hadamard, 2, HALF, COLUMNS)), (0, 2, 3, 1))
        low, high = tl.split(w)
        pairs = tl.reshape(tl.abs(low) + tl.abs(high), (ROWS // 2, COLUMNS))
    else:
        w = tl.permute(tl.reshape(v, (ROWS, COLUMNS // COPY.hadamard, 2, HALF)), (0, 1, 3, 2))
        low, high = tl.split(w)
        pairs = tl.reshape(tl.abs(low) + tl.abs(high), (ROWS, COLUMNS // 2))
    return pairs


@triton.jit
def round_bits_to_bf16(v):
    """v to the nearest BF16 number, ties to even, as FP32: on its bits, for scalars."""
    bits = v.to(tl.int32, bitcast=True)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
    return tl.where(v != v, v, rounded)


@triton.jit
def round_to_bf16(v):
    """v to the nearest BF16 number, ties to even, as FP32."""
    if INTERPRETED:
        return round_bits_to_bf16(v)
    # Two at a time: the cast of single numbers goes through a unit that is 8 times slower.
    return tl.inline_asm_elementwise(
        "{.reg .b32 p; cvt.rn.bf16x2.f32 p, $3, $2; shl.b32 $0, p, 16; and.b32 $1, p, 0xFFFF0000;}",
        "=r,=r,r,r", [v], dtype=tl.float32, is_pure=True, pack=2,
    )  # fmt: skip
