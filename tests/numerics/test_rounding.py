"""Rounding to E2M1, E4M3 and E5M2: nearest even, stochastic, saturation, zeros and NaN."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from numerics_helpers import assert_same

from repro.numerics.formats import E2M1, E4M3, E5M2, FP32_MAX
from repro.numerics.oracle import stochastic_code
from repro.numerics.rounding import decode, round_to_codes

ELEMENTS = [E2M1, E4M3, E5M2]
by_name = pytest.mark.parametrize("element", ELEMENTS, ids=lambda e: e.name)


def tensor(values):
    return torch.tensor(values, dtype=torch.float32)


@pytest.mark.parametrize(
    ("y", "value"),
    # Ties go to the even mantissa: 0, 1, 2, 4 and not 0.5, 1.5, 3, 6.
    [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)],
)
def test_trial_06_every_tie_of_e2m1(y, value):
    above, below = np.nextafter(np.float32(y), np.float32(9)), np.nextafter(np.float32(y), np.float32(0))
    upper = min(v for v in E2M1.magnitudes if v > y)
    lower = max(v for v in E2M1.magnitudes if v < y)
    points = tensor([y, above, below])
    assert decode(round_to_codes(points, E2M1), E2M1).tolist() == [value, upper, lower]
    negative = decode(round_to_codes(-points, E2M1), E2M1)
    assert_same("mirrored", negative, [-value, -upper, -lower])


def test_sign_of_zero_in_e2m1():
    """-0.0 has code 0; a negative number that rounds to zero has code 8, minus zero."""
    y = tensor([0.0, -0.0, -(2.0**-149), -0.25, -0.2500001])
    assert round_to_codes(y, E2M1).tolist() == [0, 0, 8, 8, 9]


@pytest.mark.parametrize(
    ("element", "dtype"), [(E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)], ids=["E4M3", "E5M2"]
)
def test_fp8_equals_the_saturated_torch_cast(element, dtype):
    """On one FP32 number in 4999, all ties of the format and their neighbours, -0.0 included."""
    every = np.arange(0, 2**32, 4999, dtype=np.uint32).view(np.float32)
    magnitudes = np.array(element.magnitudes, dtype=np.float32)
    ties = (magnitudes[1:] + magnitudes[:-1]) / 2
    around = [np.nextafter(ties, np.float32(0)), ties, np.nextafter(ties, np.float32(np.inf)), magnitudes]
    points = np.concatenate([every[np.isfinite(every)], *around, *(-p for p in around)])
    y = torch.from_numpy(points)
    expected = y.clamp(-element.max, element.max).to(dtype).view(torch.uint8)
    assert_same("codes", round_to_codes(y, element), expected)


@by_name
def test_codes_are_fixed_points(element):
    codes = torch.tensor([c for c in range(1 << element.bits) if math.isfinite(element.decode(c))])
    codes = codes.to(torch.uint8)
    again = round_to_codes(decode(codes, element), element)
    expected = codes if element.keeps_negative_zero else torch.where(codes == element.sign_bit, 0, codes)
    assert_same("codes", again, expected)
    for byte in (0, 255):
        bits = torch.full_like(codes, byte)
        assert_same(
            f"codes with byte {byte}", round_to_codes(decode(codes, element), element, bits), expected
        )


@by_name
@pytest.mark.parametrize("bits", [None, 255], ids=["rne", "sr"])
def test_saturates_and_never_gives_specials(element, bits):
    y = tensor([element.max * 1.01, FP32_MAX, math.inf, -math.inf, math.nan, -math.nan])
    random_bits = None if bits is None else torch.full(y.shape, bits, dtype=torch.uint8)
    top = element.code_of_max
    expected = [top, top, top, top | element.sign_bit, 0, 0]
    assert round_to_codes(y, element, random_bits).tolist() == expected


@by_name
def test_stochastic_equals_oracle_for_all_256_bytes(element):
    rng = np.random.default_rng(3)
    a = np.abs(rng.standard_normal(60)) * 2.0 ** rng.uniform(-12, math.log2(element.max), 60)
    a = np.concatenate([a, np.array(element.magnitudes)[:24], [2.0**-149, 2.0**-24, element.max]])
    a = np.minimum(a, element.max).astype(np.float32)
    y = torch.from_numpy(a)[:, None].expand(-1, 256)
    bits = torch.arange(256, dtype=torch.uint8).expand(len(a), 256)
    expected = [[stochastic_code(Fraction(float(v)), element, byte) for byte in range(256)] for v in a]
    assert_same("codes", round_to_codes(y, element, bits), expected)
    assert_same("codes of -y", round_to_codes(-y, element, bits) & ~element.sign_bit & 255, expected)


def test_probability_of_rounding_up_is_the_fraction_in_256ths():
    """P(up) = floor(256 * fraction) / 256 on every interval of E2M1."""
    bits = torch.arange(256, dtype=torch.uint8)
    for code, (low, high) in enumerate(zip(E2M1.magnitudes, E2M1.magnitudes[1:], strict=False)):
        for fraction in (0.0, 1 / 512, 1 / 256, 0.3, 0.5, 0.999):
            y = tensor(low + fraction * (high - low)).expand(256)
            exact_fraction = (Fraction(float(y[0])) - Fraction(low)) / Fraction(high - low)
            num_up = int((round_to_codes(y, E2M1, bits) == code + 1).sum())
            assert num_up == math.floor(256 * exact_fraction), f"{float(y[0])} between {low} and {high}"


def test_stochastic_keeps_the_sign_of_a_number_that_rounds_to_zero():
    zero_bits = torch.zeros(3, dtype=torch.uint8)
    assert round_to_codes(tensor([-0.3, 0.3, -0.0]), E2M1, zero_bits).tolist() == [8, 0, 0]
