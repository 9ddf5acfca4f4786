"""The Triton kernels: the amax pass, and the pass that reads a tile once and writes one or two quantised copies.

A tensor x [M, N] with any strides, or what SOURCE makes of x and y of the same strides (loads.py); outputs are
contiguous [M, N]. `Copy` (arithmetic.py) describes a copy.

    amax_kernel       per program: largest |x|, and largest |x transformed|, as FP32    -> partial [2, programs]
    quantise_kernel   amax = largest partial; per tile: load, (transform, round to BF16), block amax, scales, round
                      -> values, and amax and GEMM scale of each copy

Formats without a tensor scale need no amax beforehand; their quantising pass leaves partial amaxes instead.
Partials instead of an atomic maximum: nothing has to be set to zero first, which saves a launch.

What wrote x began with its first rows and left the last ones in the cache. There the amax pass begins, and leaves the
first ones to the quantising pass.

Does not: choose tile sizes (`tiles.py`) or check arguments (`binding.py`).
"""

# ruff: noqa: ANN001, ANN201, ANN202
# Triton functions: the types of their arguments are Triton's.
from __future__ import annotations

import triton
import triton.language as tl

from repro.numerics.gpu.arithmetic import (
    at_least_bits,
    exact_to,
    largest,
    largest_of_all,
    quantise_tile,
    tensor_encode_scale,
)
from repro.numerics.gpu.loads import load_tile
from repro.numerics.gpu.noise import random_steps
from repro.numerics.gpu.rotation import last_round, rotate_tile, round_bits_to_bf16, round_to_bf16

#: Bits of 1 / FP32 max rounded to FP32, 2^-128.
_FP32_MAX_RECIPROCAL = tl.constexpr(0x00200000)


@triton.jit
def _store_tile(
    out, values, row, column, num_rows, num_columns,
    EVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    rows = row + tl.arange(0, ROWS)
    columns = tl.max_contiguous(column + tl.arange(0, COLUMNS), VECTOR)
    pointers = out + rows[:, None] * num_columns + columns[None, :]
    values = exact_to(values, out.dtype.element_ty)
    if EVEN:
        tl.store(pointers, values)
    else:
        inside = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
        tl.store(pointers, values, mask=inside)


@triton.jit
def amax_kernel(
    x, y, signs, partials, num_rows, num_columns, stride_row, stride_column, num_programs,
    COPY: tl.constexpr, PLAIN: tl.constexpr, SOURCE: tl.constexpr, NATIVE: tl.constexpr, PARTIALS: tl.constexpr,
    EVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """partials[0, p]: largest |x| of what program p saw (if PLAIN); partials[1, p]: of x transformed as in COPY.

    partials: FP32 [2, PARTIALS], PARTIALS less than twice the number of programs; those beyond become zero.
    """
    program = tl.program_id(0)
    FROM_BF16: tl.constexpr = x.dtype.element_ty == tl.bfloat16
    if program + num_programs < PARTIALS:
        tl.store(partials + program + num_programs, 0.0)
        tl.store(partials + PARTIALS + program + num_programs, 0.0)
    panels_per_row = tl.cdiv(num_columns, COLUMNS)
    num_panels = tl.cdiv(num_rows, ROWS) * panels_per_row
    INNER: tl.constexpr = COLUMNS if COPY.along == 0 else COLUMNS // 2
    # A maximum per column of the tile: nothing crosses threads before the end.
    plain = tl.zeros((1, COLUMNS), tl.float32)
    rotated = tl.zeros((1, INNER), tl.float32)
    panel = num_panels - 1 - program
    while panel >= 0:  # `range` over run-time numbers fails in Triton's interpreter beside NumPy 2.4
        row = (panel // panels_per_row).to(tl.int64) * ROWS
        column = (panel % panels_per_row) * COLUMNS
        v = load_tile(
            x, y, row, column, num_rows, num_columns, stride_row, stride_column,
            SOURCE, NATIVE, EVEN, ROWS, COLUMNS, VECTOR,
        )  # fmt: skip
        if PLAIN:
            plain = tl.maximum(plain, largest(v, 0), propagate_nan=tl.PropagateNan.ALL)
        if COPY.hadamard > 0:
            here = largest(last_round(v, signs, COPY, ROWS, COLUMNS, FROM_BF16), 0)
            rotated = tl.maximum(rotated, here, propagate_nan=tl.PropagateNan.ALL)
        panel -= num_programs
    if PLAIN:
        tl.store(partials + program, largest_of_all(plain))
    if COPY.hadamard > 0:
        amax = largest_of_all(rotated)
        if amax == float("inf"):  # or NaN? Once more, in full.
            panel = num_panels - 1 - program
            while panel >= 0:
                row = (panel // panels_per_row).to(tl.int64) * ROWS
                column = (panel % panels_per_row) * COLUMNS
                v = load_tile(
                    x, y, row, column, num_rows, num_columns, stride_row, stride_column,
                    SOURCE, NATIVE, EVEN, ROWS, COLUMNS, VECTOR,
                )  # fmt: skip
                here = largest_of_all(rotate_tile(v, signs, COPY, ROWS, COLUMNS, FROM_BF16))
                amax = tl.maximum(amax, here, propagate_nan=tl.PropagateNan.ALL)
                panel -= num_programs
        # Factors and rounding keep the order, so the largest rounded value is the largest value rounded.
        tl.store(partials + PARTIALS + program, round_bits_to_bf16(amax * COPY.factor_after))


@triton.jit
def amax_of(partials, PARTIALS: tl.constexpr):
    """The largest of PARTIALS numbers, of which `amax_kernel` has set the last ones to zero."""
    bits = tl.load(partials + tl.arange(0, PARTIALS)).to(tl.int32, bitcast=True)
    return tl.max(bits, axis=0).to(tl.float32, bitcast=True)  # NaN has the largest bits


@triton.jit
def _gemm_scale(amax, TENSOR_MAX: tl.constexpr):
    scale = tl.math.div_rn(amax, tl.zeros_like(amax) + TENSOR_MAX)
    return at_least_bits(scale, _FP32_MAX_RECIPROCAL)


@triton.jit
def _seed(low, high):
    """The two words of a seed: numbers, or in the int64 that `low` points to."""
    if low.dtype.is_ptr():
        seed = tl.load(low)
        low, high = seed & 0xFFFFFFFF, seed >> 32
    return low.to(tl.uint32), high.to(tl.uint32)


@triton.jit
def encode_scale(partials, results, COPY: tl.constexpr, PARTIALS: tl.constexpr):
    """(amax, s_enc) of a format with a tensor scale. results[0]: amax, results[1]: GEMM scale."""
    amax = amax_of(partials, PARTIALS)
    if tl.program_id(0) == 0:
        tl.store(results, amax)
        tl.store(results + 1, _gemm_scale(amax, COPY.tensor_max))
    return amax, tensor_encode_scale(amax, COPY.tensor_max)


@triton.jit
def transformed(v, signs, COPY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """What a copy quantises."""
    if COPY.hadamard > 0:
        v = round_to_bf16(rotate_tile(v, signs, COPY, ROWS, COLUMNS))
    return v


@triton.jit
def write_values(
    v, out, s_enc, seed_low, seed_high, row, column, num_rows, num_columns,
    COPY: tl.constexpr, NATIVE: tl.constexpr, EVEN: tl.constexpr, ALIGNED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Quantises a tile that is transformed already, and stores it."""
    noise = v
    if COPY.stochastic:
        rows = row + tl.arange(0, ROWS)
        noise = random_steps(
            seed_low, seed_high, rows, column, num_columns, COPY.element_mantissa_bits, NATIVE, ALIGNED, ROWS, COLUMNS
        )  # fmt: skip
    values = quantise_tile(v, s_enc, noise, COPY, NATIVE, ROWS, COLUMNS)
    _store_tile(out, values, row, column, num_rows, num_columns, EVEN, ROWS, COLUMNS, VECTOR)


@triton.jit
def _write_copy(
    v, out, signs, partials, results, low, high, row, column, num_rows, num_columns,
    COPY: tl.constexpr, NATIVE: tl.constexpr, PARTIALS: tl.constexpr, EVEN: tl.constexpr, ALIGNED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """One copy of a tile; without a tensor scale also its amax, which partials takes."""
    v = transformed(v, signs, COPY, ROWS, COLUMNS)
    if COPY.tensor_max > 0.0:
        _, s_enc = encode_scale(partials, results, COPY, PARTIALS)
    else:
        tl.store(partials + tl.program_id(0), largest_of_all(v))
        s_enc = 1.0
    seed_low, seed_high = _seed(low, high)
    write_values(
        v, out, s_enc, seed_low, seed_high, row, column, num_rows, num_columns,
        COPY, NATIVE, EVEN, ALIGNED, ROWS, COLUMNS, VECTOR,
    )  # fmt: skip


@triton.jit(do_not_specialize=["low_0", "high_0", "low_1", "high_1"])
def quantise_kernel(
    x, y, num_rows, num_columns, stride_row, stride_column,
    out_0, signs_0, partials_0, results_0, low_0, high_0,
    out_1, signs_1, partials_1, results_1, low_1, high_1,
    COPY_0: tl.constexpr, COPY_1: tl.constexpr, PAIR: tl.constexpr, SOURCE: tl.constexpr, NATIVE: tl.constexpr,
    PARTIALS: tl.constexpr, EVEN: tl.constexpr, ALIGNED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """One program, one tile [ROWS, COLUMNS]: copy 0, and if PAIR copy 1."""
    program = tl.program_id(0)
    panels_per_row = tl.cdiv(num_columns, COLUMNS)
    row = (program // panels_per_row).to(tl.int64) * ROWS
    column = (program % panels_per_row) * COLUMNS
    v = load_tile(
        x, y, row, column, num_rows, num_columns, stride_row, stride_column,
        SOURCE, NATIVE, EVEN, ROWS, COLUMNS, VECTOR,
    )  # fmt: skip
    _write_copy(
        v, out_0, signs_0, partials_0, results_0, low_0, high_0,
        row, column, num_rows, num_columns, COPY_0, NATIVE, PARTIALS, EVEN, ALIGNED, ROWS, COLUMNS, VECTOR,
    )  # fmt: skip
    if PAIR:
        _write_copy(
            v, out_1, signs_1, partials_1, results_1, low_1, high_1,
            row, column, num_rows, num_columns, COPY_1, NATIVE, PARTIALS, EVEN, ALIGNED, ROWS, COLUMNS, VECTOR,
        )  # fmt: skip
