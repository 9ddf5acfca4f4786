"""Two BF16 numbers in one word: quantisation to E2M1 with about half the instructions, as Triton functions.

Paper sections 4.2 and 4.4. Same bits as `arithmetic.py`, which is the rule, for tensors whose amax lies between
SMALLEST and LARGEST (so nothing is Inf or NaN, and no product underflows); on Hopper and later. `w` are words of two
columns (`words.py`), `y` FP32 numbers in units of the block's scale.

    rne   M = E K + C, with E the power of two in |y|, is a number whose unit in the last place is the step of E2M1 at
          |y|, for every |y| from 0 on: (y + M) - M. Beyond 6 it is cut in BF16, two at a time.
    sr    FP16's smallest normal number is that of E2M1 times 2^-14, and FP16 has ten bits of mantissa for the one
          that is kept and eight to add noise to: |y| 2^-14 is cut to FP16, the two bytes are added to two numbers
          at once as integers, and what is left of the mantissa is masked. The reference rounds |y| + noise to FP32
          before it cuts; that is seen below 0.25 only, where sums from 0.5 - 2^-26 on round to 0.5: hence 2^-26 is
          added before cutting. The result, three bits, is BF16 times 2^126 when moved down by three bits.

The sign is put back at the end, from the original; a zero is made +0 before. In the interpreter the same steps run as
integer and FP64 arithmetic.

Does not: take tensors outside the range, or other element formats.
"""

# ruff: noqa: ANN001, ANN201, ANN202
# Triton functions: the types of their arguments are Triton's.
from __future__ import annotations

import triton
import triton.language as tl

from repro.numerics.gpu.arithmetic import INTERPRETED, round_magnitude
from repro.numerics.gpu.noise import random_words
from repro.numerics.gpu.rotation import rotate_tile
from repro.numerics.gpu.words import (
    high,
    larger_half,
    largest_pairs,
    low,
    round_pair,
    without_minus_zero,
    words_of,
)

#: Range of a tensor's amax: see `encode_pairs` and `reciprocal`.
SMALLEST, LARGEST = tl.constexpr(2.0**-80), tl.constexpr(2.0**17)

_SIGNS = tl.constexpr(-0x7FFF8000)


@triton.jit
def reciprocal(x):
    """1 / x, correctly rounded, for 2^-120 < x < 2^120: the common path of `div_rn` without its tests."""
    if INTERPRETED:
        return tl.math.div_rn(tl.zeros_like(x) + 1.0, x)
    return tl.inline_asm_elementwise(
        "{.reg .f32 r, t; rcp.approx.ftz.f32 r, $1; neg.f32 t, $1; fma.rn.f32 t, t, r, 0f3F800000;"
        "fma.rn.f32 $0, r, t, r;}",
        "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1,
    )  # fmt: skip


_RNE = tl.constexpr("""{
.reg .b32 e<2>, p, s;
.reg .f32 y<2>, m<2>;
shl.b32 e0, $1, 16;
and.b32 e1, $1, 0xFFFF0000;
mul.rn.f32 y0, e0, $2;
mul.rn.f32 y1, e1, $3;
and.b32 e0, y0, 0x7F800000;
and.b32 e1, y1, 0x7F800000;
fma.rn.f32 m0, e0, 0f4A600000, 0f4A880000;
fma.rn.f32 m1, e1, 0f4A600000, 0f4A880000;
add.rn.f32 y0, y0, m0;
add.rn.f32 y1, y1, m1;
sub.rn.f32 y0, y0, m0;
sub.rn.f32 y1, y1, m1;
cvt.rn.bf16x2.f32 p, y1, y0;
mov.b32 s, 0x40C040C0;
min.xorsign.abs.bf16x2 p, p, s;
mul.rn.bf16x2 p, p, $4;
lop3.b32 $0, p, $1, 0x80008000, 0xF8;
}""")

_SR = tl.constexpr("""{
.reg .b32 e<2>, h, n, t;
.reg .f32 a<2>;
shl.b32 e0, $1, 16;
and.b32 e1, $1, 0xFFFF0000;
mul.rn.f32 a0, e0, $2;
mul.rn.f32 a1, e1, $3;
abs.f32 a0, a0;
abs.f32 a1, a1;
add.rz.f32 a0, a0, 0f2B800000;
add.rz.f32 a1, a1, 0f2B800000;
cvt.rz.f16x2.f32 h, a1, a0;
mov.b32 t, 0;
prmt.b32 n, $5, t, $6;
mad.lo.u32 h, n, 2, h;
mov.b32 t, 0x0FFF0FFF;
min.u16x2 h, h, t;
and.b32 h, h, 0x0E000E00;
shr.u32 h, h, 3;
mov.b32 t, 0x7B007B00;
mul.rn.bf16x2 h, h, t;
mul.rn.bf16x2 h, h, $4;
lop3.b32 $0, h, $1, 0x80008000, 0xF8;
}""")


@triton.jit
def encode_pairs(w, even, odd, scale, noise, second, STOCHASTIC: tl.constexpr):
    """RoundE2M1(x * encode) * scale for x in words w without -0: words of BF16.

    even, odd: what the columns are multiplied with, FP32, for STOCHASTIC times 2^-14. scale: words of BF16, for
    STOCHASTIC times 2^7. noise: words of four random bytes, of which a word of w takes the first or the second two.
    """
    if INTERPRETED:
        y0, y1 = low(w) * even, high(w) * odd
        if STOCHASTIC:
            bits = noise >> (16 * second).to(tl.uint32)
            q0, q1 = _cut(y0, bits & 0xFF), _cut(y1, (bits >> 8) & 0xFF)
        else:
            q0, q1 = _round(y0), _round(y1)
        product0 = (q0 * low(scale)).to(tl.int32, bitcast=True)
        product1 = (q1 * high(scale)).to(tl.int32, bitcast=True)
        return ((product0 >> 16) & 0x7FFF) | (product1 & 0x7FFF0000) | (w & _SIGNS)
    if STOCHASTIC:
        noise = noise.to(tl.int32, bitcast=True)
        return tl.inline_asm_elementwise(
            _SR, "=r,r,r,r,r,r,r", [w, even, odd, scale, noise, 0x4140 + 0x202 * second],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    return tl.inline_asm_elementwise(
        _RNE, "=r,r,r,r,r", [w, even, odd, scale], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _round(y):
    """Interpreter: the FP32 part of `_RNE` and the cut at 6, a magnitude."""
    power = (y.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    m = power * 3670016.0 + 4456448.0
    return tl.minimum(tl.abs((y + m) - m), 6.0)


@triton.jit
def _cut(y, noise):
    """Interpreter: `_SR` for one half, times 2^-7."""
    units = ((tl.abs(y).to(tl.float64) + 2.0**-40) * 2.0**24).to(tl.int64)
    units = tl.minimum(units, 8191)
    h = tl.where(units < 2048, units, tl.where(units < 4096, 1024 + (units >> 1), 2048 + (units >> 2)))
    code = tl.minimum(h.to(tl.int32) + 2 * noise, 0xFFF) >> 9
    field = code >> 1
    # The last three bits of a BF16 number's exponent and mantissa, times 2^119.
    value = tl.where(field > 0, (2 + (code & 1)) << field, (code & 1) << 1)
    return value.to(tl.float32) * 2.0**-9


@triton.jit
def _scales(b, s_enc, COPY: tl.constexpr):
    """`block_scales` in the units of `encode_pairs`; under a scale of zero y stays finite, its product is zero."""
    UP: tl.constexpr = 2.0**7 if COPY.stochastic else 1.0
    DOWN: tl.constexpr = 2.0**-14 if COPY.stochastic else 1.0
    d = b * ((s_enc * COPY.element_reciprocal) * UP)
    scale = round_magnitude(d, d, False, COPY.scale_min_normal * UP, COPY.scale_mantissa_bits)
    smallest = (
        COPY.scale_min_normal * 2.0 ** -(COPY.scale_mantissa_bits + 1) * UP
    )  # half of the smallest scale
    encode = reciprocal(tl.maximum(scale, smallest) * (reciprocal(s_enc) * (1.0 / (UP * DOWN))))
    return scale, encode


@triton.jit
def _transform_half(w, signs, COPY: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr):
    even = rotate_tile(low(w), signs, COPY, ROWS, WORDS, True)
    odd = rotate_tile(high(w), signs, COPY, ROWS, WORDS, True)
    return round_pair(even, odd)


@triton.jit
def transform_pairs(w, signs, COPY: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """What a copy quantises, without -0."""
    if COPY.hadamard > 0:  # in two halves, which need fewer registers
        first, second = tl.split(tl.reshape(w, (ROWS, WORDS // 2, 2)))
        first = _transform_half(first, signs, COPY, ROWS, WORDS // 2)
        second = _transform_half(second, signs, COPY, ROWS, WORDS // 2)
        w = tl.reshape(tl.join(first, second), (ROWS, WORDS))
    return without_minus_zero(w)


@triton.jit
def quantise_pairs(
    w, s_enc, seed_low, seed_high, rows, column, num_columns,
    COPY: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Element value x block scale of a tile of whole blocks, of `transform_pairs`: words [ROWS, WORDS]."""
    if COPY.along == 1:
        shape: tl.constexpr = (ROWS, WORDS * 2 // COPY.tile_columns, COPY.tile_columns // 2)
        w = tl.reshape(w, shape)
        scale, even = _scales(larger_half(largest_pairs(w, 2)), s_enc, COPY)
        odd = even
        scale = words_of(scale, scale)
    else:
        shape: tl.constexpr = (ROWS // COPY.tile_rows, COPY.tile_rows, WORDS)
        w = tl.reshape(w, shape)
        b = largest_pairs(w, 1)
        scale_even, even = _scales(tl.abs(low(b)), s_enc, COPY)
        scale_odd, odd = _scales(tl.abs(high(b)), s_enc, COPY)
        scale = words_of(scale_even, scale_odd)
    noise, second = w, w
    if COPY.stochastic:
        words = random_words(seed_low, seed_high, rows, column, num_columns, ROWS, 2 * WORDS)
        noise, second = tl.broadcast(words[:, :, None], tl.arange(0, 2)[None, None, :])
        noise, second = tl.reshape(noise, shape), tl.reshape(second, shape)
    return tl.reshape(encode_pairs(w, even, odd, scale, noise, second, COPY.stochastic), (ROWS, WORDS))
