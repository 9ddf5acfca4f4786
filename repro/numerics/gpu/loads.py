"""Loading: tiles as FP32, and squared ReLU and its gradient worked out of what is loaded, as Triton functions.

Paper Appendix A. SOURCE says what the numbers to quantise are, `repro/numerics/source.py` what its bits are:

    PLAIN                    x
    SQUARED_RELU             relu(x)^2
    SQUARED_RELU_GRADIENT    x * 2 relu(y), +0 where y <= 0

Of BF16 tensors; NATIVE (Hopper and later) does it to two numbers at once in BF16, where a product rounds as an FP32
product does that is rounded to BF16. Zeros beyond the tensor's edges stay zeros.

Does not: quantise, or take x and y of different strides.
"""

# ruff: noqa: ANN001, ANN201, ANN202
# Triton functions: the types of their arguments are Triton's.
from __future__ import annotations

import triton
import triton.language as tl

from repro.numerics.gpu.arithmetic import to_fp32
from repro.numerics.gpu.rotation import round_to_bf16
from repro.numerics.gpu.words import high, low, words_of

#: Values of SOURCE.
PLAIN, SQUARED_RELU, SQUARED_RELU_GRADIENT = map(tl.constexpr, range(3))

_SQUARE = tl.constexpr("""{
.reg .b32 r;
mov.b32 r, 0;
max.NaN.bf16x2 r, $1, r;
mul.rn.bf16x2 $0, r, r;
}""")

# `set` gives a half of ones where y is larger than 0 or NaN.
_GRADIENT = tl.constexpr("""{
.reg .b32 r, s;
add.rn.bf16x2 r, $2, $2;
mul.rn.bf16x2 r, $1, r;
mov.b32 s, 0;
set.gtu.u32.bf16x2 s, $2, s;
and.b32 $0, r, s;
}""")


@triton.jit
def _native(x, y, SOURCE: tl.constexpr):
    """x, y: BF16 numbers, or words of two."""
    PACK: tl.constexpr = 32 // x.dtype.primitive_bitwidth
    if SOURCE == SQUARED_RELU:
        return tl.inline_asm_elementwise(_SQUARE, "=r,r", [x], dtype=x.dtype, is_pure=True, pack=PACK)
    return tl.inline_asm_elementwise(_GRADIENT, "=r,r,r", [x, y], dtype=x.dtype, is_pure=True, pack=PACK)


@triton.jit
def _in_fp32(x, y, SOURCE: tl.constexpr):
    if SOURCE == SQUARED_RELU:
        r = tl.where(x <= 0.0, 0.0, x)
        return round_to_bf16(r * r)
    return tl.where(y <= 0.0, 0.0, round_to_bf16(x * (y + y)))


@triton.jit
def words_to_quantise(w, u, SOURCE: tl.constexpr, NATIVE: tl.constexpr):
    """Words of two BF16 numbers. w, u: of x and of y."""
    if SOURCE == PLAIN:
        return w
    if NATIVE:
        return _native(w, u, SOURCE)
    return words_of(_in_fp32(low(w), low(u), SOURCE), _in_fp32(high(w), high(u), SOURCE))


@triton.jit
def load_tile(
    x, y, row, column, num_rows, num_columns, stride_row, stride_column,
    SOURCE: tl.constexpr, NATIVE: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """x[row : row + ROWS, column : column + COLUMNS], or what SOURCE makes of it (and of y), in FP32, zero outside;
    row int64."""
    rows = row + tl.arange(0, ROWS)
    columns = tl.max_contiguous(column + tl.arange(0, COLUMNS), VECTOR)
    v = _load(x, rows, columns, num_rows, num_columns, stride_row, stride_column, EVEN)
    if SOURCE == PLAIN:
        return to_fp32(v)
    u = v
    if SOURCE == SQUARED_RELU_GRADIENT:
        u = _load(y, rows, columns, num_rows, num_columns, stride_row, stride_column, EVEN)
    if NATIVE:
        return to_fp32(_native(v, u, SOURCE))
    return _in_fp32(to_fp32(v), to_fp32(u), SOURCE)


@triton.jit
def _load(x, rows, columns, num_rows, num_columns, stride_row, stride_column, EVEN: tl.constexpr):
    pointers = x + rows[:, None] * stride_row + columns[None, :].to(tl.int64) * stride_column
    if EVEN:
        return tl.load(pointers)
    inside = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    return tl.load(pointers, mask=inside, other=0.0)
