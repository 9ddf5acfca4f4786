"""The exact arithmetic of block quantisation as Triton functions: FP32 values in, FP32 values out.

Paper (arXiv 2509.25149) sections 4.2, 4.4 and Appendix B. The rules, and the order in which FP32 operations round,
are those of `repro/numerics/scaling.py` and `rounding.py` (transform: `rotation.py`, noise: `noise.py`); it says how
a GPU does the same with few instructions:

    step      E = 2^exponent of max(|y|, smallest normal) is a mask of the bits; a number's step is E / 2^mantissa
    rne       (a + 2^23 steps) - 2^23 steps: the FP32 unit in the last place of 2^23 steps is one step
    sr        t = a + r / 256 * step as the reference rounds it, then rne(t), less one step where that is above t
    amax      NaN is larger than everything
    E4M3      rounded by the same additions, not by a cast: Triton's interpreter truncates in that cast

Everything here must be compiled with `enable_fp_fusion=False`: x * e followed by an addition rounds twice.
Division is `div_rn`, because Triton's `/` is an approximation. Tiles are [rows, columns] in the tensor's own layout.

Does not: hold PTX (`native.py`), load, store, or know a format by name (`passes.py` hands over its numbers as
compile-time constants).
"""

# ruff: noqa: ANN001, ANN201, ANN202
# Triton functions: the types of their arguments are Triton's.
from __future__ import annotations

import os
from typing import NamedTuple

import triton
import triton.language as tl

from repro.numerics.gpu.native import native_e2m1, native_fp32

_FP32_MAX = tl.constexpr(3.4028234663852886e38)
_EXPONENT_MASK = tl.constexpr(0x7F800000)
_SIGN_MASK = tl.constexpr(-0x80000000)

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")

#: Values of `Copy.rule`.
TWO_LEVEL_TE, TWO_LEVEL_PAPER, POWER_OF_TWO_UP, AMAX_OVER_MAX = range(4)
_TWO_LEVEL_TE = tl.constexpr(TWO_LEVEL_TE)
_POWER_OF_TWO_UP = tl.constexpr(POWER_OF_TWO_UP)
_AMAX_OVER_MAX = tl.constexpr(AMAX_OVER_MAX)


class Copy(NamedTuple):
    """One quantised copy of a tensor, as compile-time constants."""

    #: Rows and columns of a block in the tensor's own layout.
    tile_rows: int
    tile_columns: int
    #: The dimension along which the transform acts, and its size (0: none).
    along: int
    hadamard: int
    has_signs: bool
    stochastic: bool
    rule: int
    element_bits: int
    element_max: float
    element_min_normal: float
    element_mantissa_bits: int
    keeps_negative_zero: bool
    #: 1 / element_max rounded to FP32.
    element_reciprocal: float
    #: Of an E4M3 scale; 0 where the rule has no use for them.
    scale_max: float
    scale_min_normal: float
    scale_mantissa_bits: int
    tensor_max: float
    #: Largest code of a UE8M0 scale.
    scale_code_max: int
    #: Factors before and after the butterflies of the transform.
    factor_before: float
    factor_after: float

    @property
    def is_e2m1(self) -> bool:
        """Whether the elements are those that `native.py` and `pairs.py` round to; another 4-bit format is not."""
        return (self.element_bits, self.element_mantissa_bits, self.element_max) == (4, 1, 6.0) and (
            not self.keeps_negative_zero
        )


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def largest(x, axis: tl.constexpr):
    """max |x| along an axis, which stays with size 1; NaN if there is one."""
    if INTERPRETED:  # which calls any other function than its own maximum once for every element
        bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        return tl.max(bits, axis=axis, keep_dims=True).to(tl.float32, bitcast=True)
    return tl.reduce(tl.abs(x), axis, _larger, keep_dims=True)


@triton.jit
def largest_of_all(x):
    """max |x| of a tensor of any shape, a scalar; NaN if there is one."""
    if INTERPRETED:
        bits = tl.ravel(x).to(tl.int32, bitcast=True) & 0x7FFFFFFF
        return tl.max(bits, axis=0).to(tl.float32, bitcast=True)
    return tl.reduce(tl.abs(tl.ravel(x)), 0, _larger)


@triton.jit
def at_least_bits(x, BITS: tl.constexpr):
    """max(x, the FP32 number of these bits) for x >= 0; NaN stays. Triton makes a subnormal literal FP64."""
    return tl.maximum(x.to(tl.int32, bitcast=True), BITS).to(tl.float32, bitcast=True)


@triton.jit
def _power_of_two(a, smallest):
    """2^exponent of max(a, smallest)."""
    return (tl.maximum(a, smallest).to(tl.int32, bitcast=True) & _EXPONENT_MASK).to(tl.float32, bitcast=True)


@triton.jit
def _minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def round_magnitude(
    a, noise, STOCHASTIC: tl.constexpr, MIN_NORMAL: tl.constexpr, MANTISSA_BITS: tl.constexpr
):
    """a >= 0 rounded to a format of this smallest normal number and mantissa; `noise` as `random_steps` gives it.

    Each fma has an exact product, so that it rounds as a product and a sum do.
    """
    power = _power_of_two(a, MIN_NORMAL)
    magic = tl.zeros_like(a) + 2.0 ** (23 - MANTISSA_BITS)
    if STOCHASTIC:
        t = tl.fma(noise, power, a)
        q = tl.fma(power, -magic, tl.fma(power, magic, t))
        q = tl.where(q > t, tl.fma(power, tl.zeros_like(a) - 2.0**-MANTISSA_BITS, q), q)
    else:
        q = tl.fma(power, -magic, tl.fma(power, magic, a))
    return q


@triton.jit
def round_to_element(y, noise, COPY: tl.constexpr):
    """y rounded to the element format: its values as FP32. Saturates; NaN stays NaN."""
    if not COPY.keeps_negative_zero:
        y = y + 0.0  # -0.0 becomes 0.0; a negative number that rounds to zero keeps its sign below
    a = _minimum(tl.abs(y), COPY.element_max)
    q = round_magnitude(a, noise, COPY.stochastic, COPY.element_min_normal, COPY.element_mantissa_bits)
    signed = q.to(tl.int32, bitcast=True) | (y.to(tl.int32, bitcast=True) & _SIGN_MASK)
    return signed.to(tl.float32, bitcast=True)


@triton.jit
def tensor_encode_scale(amax, TENSOR_MAX: tl.constexpr):
    """s_enc of a two-level format."""
    s_enc = _minimum(tl.math.div_rn(tl.zeros_like(amax) + TENSOR_MAX, amax), _FP32_MAX)
    return tl.where(s_enc == 0.0, 1.0, s_enc)


@triton.jit
def block_scales(b, s_enc, COPY: tl.constexpr):
    """(stored scale as FP32, encode) of blocks with amax `b`; `encode` multiplies, or divides for FP32 scales."""
    if COPY.rule == _AMAX_OVER_MAX:
        scale = tl.math.div_rn(b, tl.zeros_like(b) + COPY.element_max)
        scale = at_least_bits(scale, 1)
        encode = scale
    elif COPY.rule == _POWER_OF_TWO_UP:
        bits = tl.math.div_rn(b, tl.zeros_like(b) + COPY.element_max).to(tl.int32, bitcast=True)
        fraction = bits & 0x7FFFFF
        code = (bits >> 23) + tl.where(fraction > 0, 1, 0)
        code = tl.where(bits < 0x800000, tl.where(fraction > 0x400000, 1, 0), code)
        code = tl.minimum(code, COPY.scale_code_max)
        scale = _from_exponent_code(code)
        scale = tl.where(b != b, float("nan"), scale)
        encode = _from_exponent_code(254 - code)
        encode = tl.where(b != b, float("nan"), encode)
    else:
        s_dec = tl.math.div_rn(tl.zeros_like(s_enc) + 1.0, s_enc)
        if COPY.rule == _TWO_LEVEL_TE:
            d = b * (s_enc * COPY.element_reciprocal)
        else:
            d = tl.math.div_rn(b, tl.zeros_like(b) + COPY.element_max) * s_enc
        d = _minimum(d, COPY.scale_max)
        scale = round_magnitude(d, d, False, COPY.scale_min_normal, COPY.scale_mantissa_bits)
        encode = _minimum(tl.math.div_rn(tl.zeros_like(b) + 1.0, scale * s_dec), _FP32_MAX)
    return scale, encode


@triton.jit
def _from_exponent_code(code):
    """2^(code - 127) for code 0 .. 254; 2^-127 is subnormal."""
    return tl.where(code > 0, code << 23, 0x400000).to(tl.float32, bitcast=True)


@triton.jit
def quantise_tile(
    v, s_enc, noise, COPY: tl.constexpr, NATIVE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Element value x block scale of a tile of whole blocks, [ROWS, COLUMNS]: FP32, or BF16 if NATIVE."""
    shape: tl.constexpr = (
        ROWS // COPY.tile_rows,
        COPY.tile_rows,
        COLUMNS // COPY.tile_columns,
        COPY.tile_columns,
    )
    v = tl.reshape(v, shape)
    if COPY.stochastic:
        noise = tl.reshape(noise, shape)
    b = tl.abs(v)
    if COPY.tile_columns > 1:
        b = largest(b, 3)
    if COPY.tile_rows > 1:
        b = largest(b, 1)
    scale, encode = block_scales(b, s_enc, COPY)
    if NATIVE:
        values = native_e2m1(v, encode, scale, noise, COPY.stochastic)
    elif COPY.rule == _AMAX_OVER_MAX:
        v, encode = tl.broadcast(v, encode)
        values = round_to_element(tl.math.div_rn(v, encode), noise, COPY) * scale
    else:
        values = round_to_element(v * encode, noise, COPY) * scale
    return tl.reshape(values, (ROWS, COLUMNS))


@triton.jit
def to_fp32(x):
    """Loaded BF16 or FP32 numbers as FP32."""
    if x.dtype == tl.float32:
        y = x
    elif INTERPRETED:
        # The interpreter's own conversions of BF16 lose subnormals and do not round.
        y = (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        y = native_fp32(x)
    return y


@triton.jit
def exact_to(v, dtype: tl.constexpr):
    """FP32 numbers that `dtype` holds exactly, in it; BF16 stays."""
    if INTERPRETED and dtype == tl.bfloat16:
        return (v.to(tl.int32, bitcast=True) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return v.to(dtype)
