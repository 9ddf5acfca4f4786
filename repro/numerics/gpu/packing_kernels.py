"""The Triton kernel that stores a tensor: element codes and block scales instead of their products.

Paper (arXiv 2509.25149) section 2; the layout is that of `repro/numerics/packing.py` and `quantize.py`.

    store_kernel    x [M, N] is read once; writes one or two copies, codes and scales

    A copy blocked along the columns is stored as [outer, inner] = [M, N]; one along the rows transposed, [N, M].
    codes   4-bit formats: byte j of a row = code[2j] | code[2j + 1] << 4; others one code a byte
    scales  one per block at any two strides: the byte of an E4M3 or UE8M0 scale, or FP32

A format's number and its code: |q| times (2^-126 / smallest normal number) is an FP32 number whose leading bits are
the code, subnormal where q is. Rules and flags are those of `arithmetic.py`.

Does not: choose tiles, allocate, or know a format by name (`packing.py`, `fp8_operand.py`).
"""

# ruff: noqa: ANN001, ANN201, ANN202
# Triton functions: the types of their arguments are Triton's.
from __future__ import annotations

import triton
import triton.language as tl

from repro.numerics.gpu import arithmetic
from repro.numerics.gpu.arithmetic import (
    block_scales,
    largest,
    largest_of_all,
    round_to_element,
    tensor_encode_scale,
)
from repro.numerics.gpu.kernels import _seed, amax_of
from repro.numerics.gpu.loads import PLAIN, load_tile
from repro.numerics.gpu.noise import random_steps
from repro.numerics.gpu.rotation import rotate_tile, round_to_bf16

_FP32_MAX = tl.constexpr(3.4028234663852886e38)
_AMAX_OVER_MAX = tl.constexpr(arithmetic.AMAX_OVER_MAX)
_POWER_OF_TWO_UP = tl.constexpr(arithmetic.POWER_OF_TWO_UP)


@triton.jit
def _code_of(q, MIN_NORMAL: tl.constexpr, MANTISSA_BITS: tl.constexpr):
    """Codes, int32 and without a sign, of FP32 numbers that the format holds; of NaN some other number."""
    scaled = tl.abs(q) * (2.0**-126 / MIN_NORMAL)
    return scaled.to(tl.int32, bitcast=True) >> (23 - MANTISSA_BITS)


@triton.jit
def _element_codes(y, noise, COPY: tl.constexpr):
    """uint8 codes of y on the element's grid; NaN gives 0."""
    q = round_to_element(y, noise, COPY)
    code = _code_of(q, COPY.element_min_normal, COPY.element_mantissa_bits)
    SIGN: tl.constexpr = 1 << (COPY.element_bits - 1)
    code |= tl.where(q.to(tl.int32, bitcast=True) < 0, SIGN, 0)
    return tl.where(q == q, code, 0).to(tl.uint8)


@triton.jit
def _cast_quotients(v, scale, is_finite, SHORT: tl.constexpr):
    """E4M3 codes of v / scale by the card's cast, which rounds to nearest even and saturates; NaN gives 0.

    `div_rn` looks out for FP32's limits at each element; here blocks with a scale near them are moved by a power of
    two first, and what then underflows rounds to zero anyhow. q = v r with r = 1 / scale rounded; a correction
    q - (q scale - v) r leaves a relative error under 2^-46, and a second one rounds correctly (Markstein's theorem).
    SHORT, for BF16 numbers: the second correction changes no code; all pairs of an amax and a number were tried
    (tests/numerics/packing_cases.py). Signs are such that a zero keeps its own.
    """
    is_small, is_large = scale < 2.0**-64, scale > 2.0**60
    power = tl.where(is_small, 2.0**64, tl.where(is_large, 2.0**-64, 1.0))
    moved = scale * power
    minus_r = tl.math.div_rn(tl.zeros_like(moved) - 1.0, moved)
    divisor = tl.where(
        scale == float("inf"), 1.0, moved
    )  # the reciprocal is zero then, and so is what is corrected
    v, divisor = tl.broadcast(v * (0.0 - power), divisor)
    v, minus_r = tl.broadcast(v, minus_r)
    q = v * minus_r
    q = tl.fma(tl.fma(q, divisor, v), minus_r, q)
    if not SHORT:
        q = tl.fma(tl.fma(q, divisor, v), minus_r, q)
    if not is_finite:
        q = tl.where(q == q, q, 0.0)
    return q.to(tl.float8e4nv).to(tl.uint8, bitcast=True)


@triton.jit
def _scale_codes(scale, COPY: tl.constexpr):
    """Block scales as they are stored."""
    if COPY.rule == _AMAX_OVER_MAX:
        stored = scale
    elif COPY.rule == _POWER_OF_TWO_UP:
        stored = (scale.to(tl.int32, bitcast=True) >> 23).to(tl.uint8)  # of 2^-127: 0; of NaN: 255, its code
    else:
        code = _code_of(scale, COPY.scale_min_normal, COPY.scale_mantissa_bits)
        stored = tl.where(scale == scale, code, 0x7F).to(tl.uint8)
    return stored


@triton.jit
def _codes_and_scales(
    v, s_enc, noise, COPY: tl.constexpr, NATIVE: tl.constexpr, SHORT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """uint8 [ROWS, COLUMNS], the stored scales of the tile's blocks, and max |v|."""
    TALL: tl.constexpr = ROWS // COPY.tile_rows
    WIDE: tl.constexpr = COLUMNS // COPY.tile_columns
    if COPY.tile_rows == 1 and WIDE == 1:  # a block is a row of the tile: nothing has to be regrouped
        b = largest(v, 1)
    elif COPY.tile_columns == 1 and TALL == 1:
        b = largest(v, 0)
    else:
        shape: tl.constexpr = (TALL, COPY.tile_rows, WIDE, COPY.tile_columns)
        v = tl.reshape(v, shape)
        if COPY.stochastic:
            noise = tl.reshape(noise, shape)
        b = tl.abs(v)
        if COPY.tile_columns > 1:
            b = largest(b, 3)
        if COPY.tile_rows > 1:
            b = largest(b, 1)
    amax = largest_of_all(b)
    scale, encode = block_scales(b, s_enc, COPY)
    if COPY.rule == _AMAX_OVER_MAX:
        IS_E4M3: tl.constexpr = COPY.element_mantissa_bits == 3 and COPY.element_max == 448.0
        if NATIVE and IS_E4M3 and not COPY.stochastic:
            codes = _cast_quotients(v, scale, amax <= _FP32_MAX, SHORT)
        else:
            v, encode = tl.broadcast(v, encode)
            codes = _element_codes(tl.math.div_rn(v, encode), noise, COPY)
    else:
        codes = _element_codes(v * encode, noise, COPY)
    return tl.reshape(codes, (ROWS, COLUMNS)), tl.reshape(_scale_codes(scale, COPY), (TALL, WIDE)), amax


@triton.jit
def _store_codes(
    codes, stored, out, scales, row, column, outer_size, inner_bytes, outer_blocks, inner_blocks,
    stride_outer, stride_inner,
    COPY: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile's codes and scales, transposed where the blocks run along the rows."""
    if COPY.along == 0:
        codes, stored = tl.trans(codes), tl.trans(stored)
        outer, inner = column.to(tl.int64), row
        OUTER: tl.constexpr = COLUMNS
        INNER: tl.constexpr = ROWS
        OUTER_TILE: tl.constexpr = COPY.tile_columns
        INNER_TILE: tl.constexpr = COPY.tile_rows
    else:
        outer, inner = row, column
        OUTER: tl.constexpr = ROWS
        INNER: tl.constexpr = COLUMNS
        OUTER_TILE: tl.constexpr = COPY.tile_rows
        INNER_TILE: tl.constexpr = COPY.tile_columns
    outers = outer + tl.arange(0, OUTER)
    if COPY.element_bits == 4:
        low, high = tl.split(tl.reshape(codes, (OUTER, INNER // 2, 2)))
        codes = low | (high << 4)
        inners = inner // 2 + tl.arange(0, INNER // 2)
    else:
        inners = inner + tl.arange(0, INNER)
    pointers = out + outers[:, None] * inner_bytes + inners[None, :]
    if EVEN:
        tl.store(pointers, codes)
    else:
        tl.store(pointers, codes, mask=(outers < outer_size)[:, None] & (inners < inner_bytes)[None, :])
    outers = outer // OUTER_TILE + tl.arange(0, OUTER // OUTER_TILE)
    inners = inner // INNER_TILE + tl.arange(0, INNER // INNER_TILE)
    pointers = scales + outers[:, None] * stride_outer + inners[None, :] * stride_inner
    if EVEN:
        tl.store(pointers, stored)
    else:
        tl.store(pointers, stored, mask=(outers < outer_blocks)[:, None] & (inners < inner_blocks)[None, :])


@triton.jit
def _encode_copy(
    v, signs, partials, seed_low, seed_high, row, column, num_columns,
    COPY: tl.constexpr, NATIVE: tl.constexpr, SHORT: tl.constexpr, LEAVES_AMAX: tl.constexpr,
    PARTIALS: tl.constexpr, ALIGNED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Codes and stored scales of one copy of a tile."""
    if COPY.hadamard > 0:
        v = round_to_bf16(rotate_tile(v, signs, COPY, ROWS, COLUMNS))
    s_enc = 1.0
    if COPY.tensor_max > 0.0:
        s_enc = tensor_encode_scale(amax_of(partials, PARTIALS), COPY.tensor_max)
    if COPY.stochastic:
        rows = row + tl.arange(0, ROWS)
        noise = random_steps(
            seed_low, seed_high, rows, column, num_columns, COPY.element_mantissa_bits, False, ALIGNED, ROWS, COLUMNS
        )  # fmt: skip
    else:
        noise = v
    codes, stored, amax = _codes_and_scales(v, s_enc, noise, COPY, NATIVE, SHORT, ROWS, COLUMNS)
    if LEAVES_AMAX and COPY.tensor_max == 0.0:
        tl.store(partials + tl.program_id(0), amax)
    return codes, stored


@triton.jit(do_not_specialize=["low_0", "high_0", "low_1", "high_1"])
def store_kernel(
    x, num_rows, num_columns, stride_row, stride_column,
    out_0, scales_0, outer_0, bytes_0, outer_blocks_0, inner_blocks_0, stride_outer_0, stride_inner_0,
    signs_0, partials_0, low_0, high_0,
    out_1, scales_1, outer_1, bytes_1, outer_blocks_1, inner_blocks_1, stride_outer_1, stride_inner_1,
    signs_1, partials_1, low_1, high_1,
    COPY_0: tl.constexpr, COPY_1: tl.constexpr, PAIR: tl.constexpr, ONE_CODE: tl.constexpr, NATIVE: tl.constexpr,
    PARTIALS: tl.constexpr, EVEN: tl.constexpr, ALIGNED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """One program, one tile of x: copy 0, and if PAIR copy 1; ONE_CODE: copy 1 is copy 0 transposed (square blocks).

    partials: of formats with a tensor scale what the amax pass left; of others this pass leaves the largest |x|,
    after the transform, of each program, once where the copies share it.
    """
    program = tl.program_id(0)
    panels_per_row = tl.cdiv(num_columns, COLUMNS)
    row = (program // panels_per_row).to(tl.int64) * ROWS
    column = (program % panels_per_row) * COLUMNS
    v = load_tile(
        x, x, row, column, num_rows, num_columns, stride_row, stride_column,
        PLAIN, NATIVE, EVEN, ROWS, COLUMNS, VECTOR,
    )  # fmt: skip
    SHORT: tl.constexpr = x.dtype.element_ty == tl.bfloat16
    seed_low, seed_high = _seed(low_0, high_0)
    codes, stored = _encode_copy(
        v, signs_0, partials_0, seed_low, seed_high, row, column, num_columns,
        COPY_0, NATIVE, SHORT, True, PARTIALS, ALIGNED, ROWS, COLUMNS,
    )  # fmt: skip
    _store_codes(
        codes, stored, out_0, scales_0, row, column, outer_0, bytes_0, outer_blocks_0, inner_blocks_0,
        stride_outer_0, stride_inner_0, COPY_0, EVEN, ROWS, COLUMNS,
    )  # fmt: skip
    if PAIR:
        if not ONE_CODE:
            seed_low, seed_high = _seed(low_1, high_1)
            codes, stored = _encode_copy(
                v, signs_1, partials_1, seed_low, seed_high, row, column, num_columns,
                COPY_1, NATIVE, SHORT, COPY_0.hadamard + COPY_1.hadamard > 0, PARTIALS, ALIGNED, ROWS, COLUMNS,
            )  # fmt: skip
        _store_codes(
            codes, stored, out_1, scales_1, row, column, outer_1, bytes_1, outer_blocks_1, inner_blocks_1,
            stride_outer_1, stride_inner_1, COPY_1, EVEN, ROWS, COLUMNS,
        )  # fmt: skip
