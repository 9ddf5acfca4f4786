"""Two BF16 numbers in one word, as Triton functions: what is done with such words whatever they are rounded to.

`w` are words of two neighbouring columns, int32: the even column in the low half. In the interpreter the same is
integer arithmetic.

Does not: quantise (`pairs.py`), or load (`pairs_kernel.py`, `loads.py`).
"""

# ruff: noqa: ANN001, ANN201, ANN202
# Triton functions: the types of their arguments are Triton's.
from __future__ import annotations

import triton
import triton.language as tl

from repro.numerics.gpu.arithmetic import INTERPRETED
from repro.numerics.gpu.rotation import round_bits_to_bf16


@triton.jit
def low(w):
    """The even columns as FP32."""
    return (w << 16).to(tl.float32, bitcast=True)


@triton.jit
def high(w):
    """The odd columns as FP32."""
    return (w & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def round_pair(even, odd):
    """FP32 numbers of even and of odd columns rounded to BF16, ties to even, as words."""
    if INTERPRETED:
        even = round_bits_to_bf16(even).to(tl.int32, bitcast=True) >> 16 & 0xFFFF
        return round_bits_to_bf16(odd).to(tl.int32, bitcast=True) | even
    return tl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [even, odd], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def without_minus_zero(w):
    """-0 becomes +0."""
    if INTERPRETED:
        w = tl.where((w & 0xFFFF) == 0x8000, w & -0x10000, w)
        return tl.where((w & -0x10000) == -0x80000000, w & 0xFFFF, w)
    return tl.inline_asm_elementwise(
        "{.reg .b32 z; mov.b32 z, 0; add.rn.bf16x2 $0, $1, z;}", "=r,r", [w],
        dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _larger_pair(v, w):
    """The larger magnitudes of both halves; NaN stays. The signs mean nothing."""
    return tl.inline_asm_elementwise(
        "max.NaN.xorsign.abs.bf16x2 $0, $1, $2;", "=r,r,r", [v, w], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def largest_pairs(w, axis: tl.constexpr):
    """Words of the largest magnitudes along an axis, which stays with size 1. The signs mean nothing."""
    if INTERPRETED:
        odd = tl.max((w >> 16) & 0x7FFF, axis=axis, keep_dims=True)
        return (odd << 16) | tl.max(w & 0x7FFF, axis=axis, keep_dims=True)
    return tl.reduce(w, axis, _larger_pair, keep_dims=True)


@triton.jit
def larger_half(w):
    """The larger magnitude of both halves, as FP32."""
    if INTERPRETED:
        return tl.maximum((w << 16) & 0x7FFFFFFF, w & 0x7FFF0000).to(tl.float32, bitcast=True)
    return tl.inline_asm_elementwise(
        "{.reg .b32 s; prmt.b32 s, $1, $1, 0x1032; max.NaN.xorsign.abs.bf16x2 s, s, $1; and.b32 $0, s, 0x7FFF0000;}",
        "=r,r", [w], dtype=tl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def words_of(even, odd):
    """BF16 numbers, held in FP32, of even and odd columns as words."""
    return ((even.to(tl.int32, bitcast=True) >> 16) & 0xFFFF) | (odd.to(tl.int32, bitcast=True) & -0x10000)
