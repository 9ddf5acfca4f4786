"""The quantising pass for BF16 tensors in NVFP4: words of two numbers, about half the instructions of `kernels.py`.

    quantise_pairs_kernel   per tile: load words, and for one or two copies (transform,) block amax, scales, round
                            -> values, and amax and GEMM scale of each copy

A tile of a tensor whose amax is out of the range of `pairs.py` (Inf and NaN are) takes the way of `kernels.py`, a few
columns at a time, so that it needs no more registers. Width and row stride are compile-time constants: addresses then
cost nothing.

Does not: take columns that are not contiguous or no multiple of 16, FP32 input, square blocks, or transforms along
the columns (`passes.takes_pairs`).
"""

# ruff: noqa: ANN001, ANN201, ANN202
# Triton functions: the types of their arguments are Triton's.
from __future__ import annotations

import triton
import triton.language as tl

from repro.numerics.gpu.kernels import _seed, encode_scale, transformed, write_values
from repro.numerics.gpu.loads import SQUARED_RELU_GRADIENT, load_tile, words_to_quantise
from repro.numerics.gpu.pairs import (
    LARGEST,
    SMALLEST,
    quantise_pairs,
    transform_pairs,
)

#: Columns of a tile at a time on the slow way.
_SLOW = tl.constexpr(32)


@triton.jit
def _word_pointers(x, row, column, stride, ROWS: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr):
    """Of a tile of BF16 numbers; `stride` and offsets within a tile fit 32 bits."""
    start = (x + row * stride + column).to(tl.pointer_type(tl.int32), bitcast=True)
    words = tl.max_contiguous(tl.arange(0, WORDS), VECTOR // 2)
    return start + (tl.arange(0, ROWS) * (stride // 2))[:, None] + words[None, :]


@triton.jit
def _inside(row, column, num_rows, num_columns, ROWS: tl.constexpr, WORDS: tl.constexpr):
    rows, words = row + tl.arange(0, ROWS), column // 2 + tl.arange(0, WORDS)
    return (rows < num_rows)[:, None] & (words < num_columns // 2)[None, :]


@triton.jit
def _load_words(
    x, row, column, num_rows, num_columns, stride,
    EVEN: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    pointers = _word_pointers(x, row, column, stride, ROWS, WORDS, VECTOR)
    if EVEN:
        return tl.load(pointers)
    return tl.load(pointers, mask=_inside(row, column, num_rows, num_columns, ROWS, WORDS), other=0)


@triton.jit
def _copy_pairs(
    w, out, signs, s_enc, low, high, row, column, num_rows, num_columns,
    COPY: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    seed_low, seed_high = _seed(low, high)
    rows = row + tl.arange(0, ROWS)
    w = transform_pairs(w, signs, COPY, ROWS, WORDS)
    values = quantise_pairs(w, s_enc, seed_low, seed_high, rows, column, num_columns, COPY, ROWS, WORDS)
    pointers = _word_pointers(out, row, column, num_columns, ROWS, WORDS, VECTOR)
    if EVEN:
        tl.store(pointers, values)
    else:
        tl.store(pointers, values, mask=_inside(row, column, num_rows, num_columns, ROWS, WORDS))


@triton.jit
def _copy_slowly(
    x, y, out, signs, s_enc, low, high, row, column, num_rows, num_columns, stride_row,
    COPY: tl.constexpr, SOURCE: tl.constexpr, NATIVE: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """One copy of the tile by the general arithmetic."""
    seed_low, seed_high = _seed(low, high)
    start = 0
    while start < COLUMNS:
        v = load_tile(
            x, y, row, column + start, num_rows, num_columns, stride_row, 1, SOURCE, NATIVE, EVEN, ROWS, _SLOW, 1
        )  # fmt: skip
        v = transformed(v, signs, COPY, ROWS, _SLOW)
        write_values(
            v, out, s_enc, seed_low, seed_high, row, column + start, num_rows, num_columns,
            COPY, NATIVE, EVEN, True, ROWS, _SLOW, 1,
        )  # fmt: skip
        start += _SLOW


@triton.jit(do_not_specialize=["low_0", "high_0", "low_1", "high_1"])
def quantise_pairs_kernel(
    x, y, num_rows,
    out_0, signs_0, partials_0, results_0, low_0, high_0,
    out_1, signs_1, partials_1, results_1, low_1, high_1,
    COPY_0: tl.constexpr, COPY_1: tl.constexpr, PAIR: tl.constexpr, SOURCE: tl.constexpr, NATIVE: tl.constexpr,
    PARTIALS: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, VECTOR: tl.constexpr,
    NUM_COLUMNS: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """One program, one tile [ROWS, COLUMNS]: copy 0, and if PAIR copy 1."""
    WORDS: tl.constexpr = COLUMNS // 2
    program = tl.program_id(0)
    panels_per_row = tl.cdiv(NUM_COLUMNS, COLUMNS)
    row = (program // panels_per_row).to(tl.int64) * ROWS
    column = (program % panels_per_row) * COLUMNS
    w = _load_words(x, row, column, num_rows, NUM_COLUMNS, STRIDE, EVEN, ROWS, WORDS, VECTOR)
    u = w
    if SOURCE == SQUARED_RELU_GRADIENT:
        u = _load_words(y, row, column, num_rows, NUM_COLUMNS, STRIDE, EVEN, ROWS, WORDS, VECTOR)
    w = words_to_quantise(w, u, SOURCE, NATIVE)
    amax, s_enc_0 = encode_scale(partials_0, results_0, COPY_0, PARTIALS)
    is_in_range = (amax >= SMALLEST) & (amax <= LARGEST)
    s_enc_1 = s_enc_0
    if PAIR:
        amax, s_enc_1 = encode_scale(partials_1, results_1, COPY_1, PARTIALS)
        is_in_range &= (amax >= SMALLEST) & (amax <= LARGEST)
    if is_in_range:
        _copy_pairs(
            w, out_0, signs_0, s_enc_0, low_0, high_0, row, column, num_rows, NUM_COLUMNS,
            COPY_0, EVEN, ROWS, WORDS, VECTOR,
        )  # fmt: skip
        if PAIR:
            _copy_pairs(
                w, out_1, signs_1, s_enc_1, low_1, high_1, row, column, num_rows, NUM_COLUMNS,
                COPY_1, EVEN, ROWS, WORDS, VECTOR,
            )  # fmt: skip
    else:
        _copy_slowly(
            x, y, out_0, signs_0, s_enc_0, low_0, high_0, row, column, num_rows, NUM_COLUMNS, STRIDE,
            COPY_0, SOURCE, NATIVE, EVEN, ROWS, COLUMNS,
        )  # fmt: skip
        if PAIR:
            _copy_slowly(
                x, y, out_1, signs_1, s_enc_1, low_1, high_1, row, column, num_rows, NUM_COLUMNS, STRIDE,
                COPY_1, SOURCE, NATIVE, EVEN, ROWS, COLUMNS,
            )  # fmt: skip
