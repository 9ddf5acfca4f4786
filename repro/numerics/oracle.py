"""Scalar oracle: the quantisation arithmetic once more, slowly, in exact fractions.

Same text as `scaling.py`, `rounding.py` and `hadamard.py`, another way of computing: each FP32 operation is
done exactly on fractions and then rounded by `fl32`; an element is rounded by looking for its two
neighbours in the list of all numbers of the format. Neither torch nor numpy nor machine floating point takes
part, so that an agreement to the bit means something. Finite inputs only.

Numbers: Python floats in and out (an FP32 number is exact in one); `Fraction` in between. `INFINITY` stands
for what FP32 gives above its range; every formula here clamps it or turns it into an infinite result.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from repro.numerics.formats import BF16, FP32, ElementFormat, QuantSpec

INFINITY = Fraction(2) ** 128
_FP32_MAX = Fraction(FP32.max)

Matrix = Sequence[Sequence[float]]


def _round_to(value: Fraction, element: ElementFormat) -> Fraction:
    """Nearest number with this exponent range and mantissa, ties to even; INFINITY on overflow."""
    if value == 0 or abs(value) >= INFINITY:
        return max(-INFINITY, min(value, INFINITY))
    quantum = Fraction(2) ** (max(_floor_log2(abs(value)), element.min_exponent) - element.mantissa_bits)
    rounded = round(value / quantum) * quantum  # Python rounds a Fraction's ties to even
    return max(-INFINITY, min(rounded, INFINITY))


def _floor_log2(value: Fraction) -> int:
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= value else exponent - 1


def fl32(value: Fraction) -> Fraction:
    """What FP32 arithmetic returns for this exact result."""
    return _round_to(value, FP32)


def to_float(value: Fraction) -> float:
    """A Python float; INFINITY becomes inf."""
    return math.copysign(math.inf, value) if abs(value) >= INFINITY else float(value)


@cache
def _numbers(element: ElementFormat) -> tuple[Fraction, ...]:
    return tuple(Fraction(value) for value in element.magnitudes)


def nearest_code(magnitude: Fraction, element: ElementFormat) -> int:
    """Code of the number nearest to a magnitude; of two equally near ones the even code; saturating."""
    numbers = _numbers(element)
    below = bisect_right(numbers, magnitude) - 1
    if below == element.code_of_max:
        return below
    to_below, to_above = magnitude - numbers[below], numbers[below + 1] - magnitude
    if to_below == to_above:
        return below if below % 2 == 0 else below + 1
    return below if to_below < to_above else below + 1


def stochastic_code(magnitude: Fraction, element: ElementFormat, random_byte: int) -> int:
    """Code after adding random_byte/256 of a step to the magnitude, in FP32, and cutting; saturating."""
    numbers = _numbers(element)
    below = bisect_right(numbers, magnitude) - 1
    # The largest number is no power of two in any format here: the step above it is the step below it.
    step_from = min(below, element.code_of_max - 1)
    step = numbers[step_from + 1] - numbers[step_from]
    moved = fl32(magnitude + Fraction(random_byte, 256) * step)
    return min(bisect_right(numbers, moved) - 1, element.code_of_max)


@dataclass(frozen=True)
class OracleResult:
    """As `Quantized`, in lists: codes and dequantised [M][N], scales [padded rows][blocks]."""

    codes: list[list[int]]
    #: Codes of the scale's format, or floats where it is FP32.
    scales: list[list[int]] | list[list[float]]
    amax: float
    #: Element value x block scale, FP32.
    block_values: list[list[float]]
    dequantized: list[list[float]]


@dataclass(frozen=True)
class _Scale:
    stored: int | float
    value: Fraction
    #: x is multiplied with (`factor`) or divided by (`divisor`) one of these.
    factor: Fraction | None = None
    divisor: Fraction | None = None

    def to_grid(self, x: Fraction) -> Fraction:
        return fl32(x * self.factor) if self.factor is not None else fl32(x / self.divisor)


def _two_level(b: Fraction, a: Fraction, spec: QuantSpec) -> _Scale:
    m, scale_max = Fraction(spec.format.element.max), Fraction(spec.format.scale.max)
    s_enc = min(fl32(m * scale_max / a), _FP32_MAX) if a else _FP32_MAX
    s_dec = fl32(1 / s_enc)
    d = fl32(b * fl32(s_enc * fl32(1 / m))) if spec.scale_order == "te" else fl32(fl32(b / m) * s_enc)
    code = nearest_code(min(d, scale_max), spec.format.scale)
    value = _numbers(spec.format.scale)[code]
    product = fl32(value * s_dec)
    factor = min(fl32(1 / product), _FP32_MAX) if product else _FP32_MAX
    return _Scale(code, value, factor=factor)


def _power_of_two_up(b: Fraction, a: Fraction, spec: QuantSpec) -> _Scale:
    ratio = fl32(b / Fraction(spec.format.element.max))
    bias = spec.format.scale.bias
    exponent = -bias
    while exponent < bias and Fraction(2) ** exponent < ratio:
        exponent += 1
    value = Fraction(2) ** exponent
    return _Scale(exponent + bias, value, factor=1 / value)


def _amax_over_max(b: Fraction, a: Fraction, spec: QuantSpec) -> _Scale:
    scale = max(fl32(b / Fraction(spec.format.element.max)), Fraction(FP32.min_subnormal))
    return _Scale(float(scale), scale, divisor=scale)


_RULES = {"two_level": _two_level, "power_of_two_up": _power_of_two_up, "amax_over_max": _amax_over_max}


def quantize_oracle(
    x: Matrix, spec: QuantSpec, *, random_bytes: Sequence[Sequence[int]] | None = None
) -> OracleResult:
    """`quantize` of the matrix x [M][N] of finite FP32 numbers, M and N at least 1."""
    num_rows, num_columns = len(x), len(x[0])
    tile_rows, tile_columns = spec.tile
    element, numbers = spec.format.element, _numbers(spec.format.element)
    a = max(abs(Fraction(value)) for row in x for value in row)
    tensor_scale = fl32(a / Fraction(spec.format.tensor_max)) if spec.format.tensor_scale else None

    def scale_of(block_row: int, block_column: int) -> _Scale:
        rows = x[block_row * tile_rows : (block_row + 1) * tile_rows]
        columns = slice(block_column * tile_columns, (block_column + 1) * tile_columns)
        b = max(abs(Fraction(value)) for row in rows for value in row[columns])
        return _RULES[spec.format.scale_rule](b, a, spec)

    num_block_rows, num_block_columns = -(-num_rows // tile_rows), -(-num_columns // tile_columns)
    blocks = [[scale_of(i, j) for j in range(num_block_columns)] for i in range(num_block_rows)]

    codes = [[0] * num_columns for _ in range(num_rows)]
    block_values = [[0.0] * num_columns for _ in range(num_rows)]
    dequantized = [[0.0] * num_columns for _ in range(num_rows)]
    for i in range(num_rows):
        for j in range(num_columns):
            scale = blocks[i // tile_rows][j // tile_columns]
            y = scale.to_grid(Fraction(x[i][j]))
            magnitude = min(abs(y), numbers[-1])
            if random_bytes is None:
                code = nearest_code(magnitude, element)
            else:
                code = stochastic_code(magnitude, element, random_bytes[i][j])
            has_sign = math.copysign(1.0, x[i][j]) < 0 if element.keeps_negative_zero else y < 0
            codes[i][j] = code | (element.sign_bit if has_sign else 0)
            value = fl32(numbers[code] * scale.value)
            sign = -1.0 if has_sign else 1.0
            block_values[i][j] = math.copysign(to_float(value), sign)
            if tensor_scale is not None:
                value = fl32(value * tensor_scale)
            dequantized[i][j] = math.copysign(to_float(value), sign)
    scales = [[scale.stored for scale in row] for row in blocks for _ in range(tile_rows)]
    return OracleResult(codes, scales, to_float(a), block_values, dequantized)


def rotate_oracle(group: Sequence[float], signs: Sequence[int]) -> list[Fraction]:
    """`rotate` of one group of len(signs) finite values: FP32 numbers, in the stated order of sums."""
    size = len(signs)
    log2_size = size.bit_length() - 1
    before = Fraction(1, 2 ** ((log2_size + 1) // 2))
    v = [fl32(Fraction(g) * s * before) for g, s in zip(group, signs, strict=True)]
    stride = 1
    while stride < size:
        for i in range(size):
            if not i & stride:
                v[i], v[i + stride] = fl32(v[i] + v[i + stride]), fl32(v[i] - v[i + stride])
        stride *= 2
    if log2_size % 2:
        sqrt2 = Fraction(11863283, 2**23)  # fl32(sqrt 2)
        v = [fl32(value * sqrt2) for value in v]
    return v


def transform_oracle(group: Sequence[float], signs: Sequence[int]) -> list[float]:
    """`transform` of one group: `rotate_oracle` rounded to BF16."""
    return [to_float(_round_to(value, BF16)) for value in rotate_oracle(group, signs)]


def transform_exact(group: Sequence[float], signs: Sequence[int]) -> list[float]:
    """The defining sum, exact until one rounding to BF16. Sizes whose square root is rational only."""
    size = len(signs)
    root = math.isqrt(size)
    assert root * root == size, f"sqrt({size}) is irrational"
    sums = (
        sum(Fraction(group[i]) * signs[i] * (-1) ** (i & j).bit_count() for i in range(size))
        for j in range(size)
    )
    return [to_float(_round_to(total / root, BF16)) for total in sums]
