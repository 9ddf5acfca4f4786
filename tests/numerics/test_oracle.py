"""The PyTorch reference against exact fractions: every format, tile, rounding and order, every magnitude."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics_helpers import ALL_SPECS, REGIMES, assert_same, make_signs, make_tensor, spec_id

from repro.numerics import make_operand_reference, quantize, random_bits, sign_vector, transform
from repro.numerics.formats import E2M1, E4M3, E5M2, FP32_MAX, NVFP4, QuantSpec
from repro.numerics.hadamard import rotate
from repro.numerics.oracle import (
    fl32,
    nearest_code,
    quantize_oracle,
    rotate_oracle,
    transform_exact,
    transform_oracle,
)
from repro.numerics.rounding import round_to_codes

seeds = st.integers(0, 2**32 - 1)


def compare(x: torch.Tensor, spec: QuantSpec, seed: int) -> None:
    bits = random_bits(seed, x.shape) if spec.rounding == "sr" else None
    ours = quantize(x, spec, random_bits=bits)
    oracle = quantize_oracle(x.tolist(), spec, random_bytes=None if bits is None else bits.tolist())
    assert_same("amax", ours.amax, np.array([oracle.amax]))
    assert_same("scales", ours.scales, oracle.scales)
    assert_same("codes", ours.codes, oracle.codes)
    assert_same("block values", ours.block_values(), oracle.block_values)
    assert_same("dequantised", ours.dequantize(), oracle.dequantized)


@pytest.mark.parametrize("spec", ALL_SPECS, ids=spec_id)
@settings(max_examples=30, deadline=None)
@given(
    seed=seeds, regime=st.sampled_from(REGIMES), num_rows=st.integers(1, 5), num_columns=st.integers(1, 70)
)
def test_reference_equals_oracle(spec, seed, regime, num_rows, num_columns):
    compare(make_tensor(seed, (num_rows, num_columns), regime), spec, seed)


@pytest.mark.parametrize("spec", ALL_SPECS, ids=spec_id)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_reference_equals_oracle_on_any_float(spec, data):
    """Numbers that hypothesis likes: extremes, subnormals, neighbours, signed zeros, a few repeated."""
    value = st.floats(width=32, allow_nan=False, allow_infinity=False)
    rows = st.lists(st.lists(value, min_size=18, max_size=18), min_size=1, max_size=3)
    compare(torch.tensor(data.draw(rows), dtype=torch.float32), spec, seed=7)


@settings(max_examples=12, deadline=None)
@given(seed=seeds, regime=st.sampled_from(REGIMES))
def test_more_than_one_square_tile(seed, regime):
    compare(make_tensor(seed, (19, 35), regime), QuantSpec(NVFP4, (16, 16)), seed)


@pytest.mark.parametrize("spec", ALL_SPECS, ids=spec_id)
@settings(max_examples=6, deadline=None)
@given(seed=seeds, regime=st.sampled_from(REGIMES))
def test_strides_do_not_matter(spec, seed, regime):
    """Transposed, sliced and expanded views give what a contiguous copy gives."""
    base = make_tensor(seed, (37, 44), regime)
    expanded = base[:1].expand(5, 44)
    for view in (base.t(), base[::2, 1::3], base[3:20, 5:], expanded):
        bits = random_bits(seed, view.shape) if spec.rounding == "sr" else None
        ours, copied = (quantize(v, spec, random_bits=bits) for v in (view, view.clone().contiguous()))
        for name in ("codes", "scales", "amax"):
            assert_same(name, getattr(ours, name), getattr(copied, name))


@settings(max_examples=60, deadline=None)
@given(
    seed=seeds,
    regime=st.sampled_from(["normal", "bf16", "every_exponent", "mixed_blocks", "subnormal"]),
    size=st.sampled_from([2, 4, 8, 16, 32, 64, 128]),
    kind=st.sampled_from(["none", "fixed", "random"]),
)
def test_transform_equals_oracle(seed, regime, size, kind):
    x = make_tensor(seed, (2, size), regime)
    signs = make_signs(size, kind, seed)
    signs_list = [int(s) for s in signs]
    in_fp32 = [[float(v) for v in rotate_oracle(row, signs_list)] for row in x.tolist()]
    in_bf16 = [transform_oracle(row, signs_list) for row in x.tolist()]
    for ours, expected in (
        (rotate(x, size, signs, dim=1), in_fp32),
        (transform(x, size, signs, dim=1), in_bf16),
    ):
        wrong = (ours != torch.tensor(expected)).nonzero()
        assert not len(wrong), f"first difference at {wrong[0].tolist()}"


@pytest.mark.parametrize("size", [4, 16, 64])
def test_transform_of_bf16_data_is_the_exact_sum_rounded_once(size):
    """So that no order of FP32 additions, a tensor core's included, could give other BF16 numbers."""
    x = make_tensor(5, (24, size), "normal").bfloat16().float()
    signs = sign_vector(size, kind="random", seed=5)
    expected = [transform_exact(row, [int(s) for s in signs]) for row in x.tolist()]
    assert_same("transform", transform(x, size, signs, dim=1), expected)


@settings(max_examples=10, deadline=None)
@given(seed=seeds, along=st.sampled_from([0, 1]), hadamard=st.sampled_from([0, 4, 16]))
def test_operand_equals_oracle(seed, along, hadamard):
    """The whole chain, transform first, stochastic bits in the operand's own layout."""
    x = make_tensor(seed, (16, 32), "bf16")
    spec = QuantSpec(NVFP4, (1, 16), rounding="sr")
    signs = sign_vector(hadamard, kind="fixed") if hadamard else None
    operand = make_operand_reference(x, spec, along=along, hadamard=hadamard, signs=signs, seed=seed)
    bits = random_bits(seed, x.shape)
    rows, bits = (x.t().tolist(), bits.t().tolist()) if along == 0 else (x.tolist(), bits.tolist())
    if hadamard:
        s = [int(v) for v in signs]
        rows = [
            [v for at in range(0, len(row), hadamard) for v in transform_oracle(row[at : at + hadamard], s)]
            for row in rows
        ]
    expected = np.array(quantize_oracle(rows, spec, random_bytes=bits).block_values, dtype=np.float32)
    assert_same("operand", operand.values, expected.T if along == 0 else expected)


@pytest.mark.parametrize("element", [E2M1, E4M3, E5M2], ids=lambda e: e.name)
def test_every_midpoint_and_its_fp32_neighbours(element):
    """All ties of the format and the FP32 numbers on both sides, by the oracle's search for neighbours."""
    magnitudes = np.array(element.magnitudes)
    ties = ((magnitudes[1:] + magnitudes[:-1]) / 2).astype(np.float32)
    points = np.concatenate(
        [np.nextafter(ties, np.float32(0)), ties, np.nextafter(ties, np.float32(FP32_MAX))]
    )
    expected = [nearest_code(Fraction(float(p)), element) for p in points]
    assert_same("codes", round_to_codes(torch.from_numpy(points), element), expected)
    mirrored = round_to_codes(torch.from_numpy(-points), element)
    assert_same("codes of negatives", mirrored, np.array(expected) | element.sign_bit)


def test_fl32_rounds_as_the_machine_does():
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 2**32, (2000, 2), dtype=np.uint32).view(np.float32)
    pairs = pairs[np.isfinite(pairs).all(1)]
    with np.errstate(all="ignore"):
        for a, b in pairs:
            for exact, machine in (
                (Fraction(float(a)) * Fraction(float(b)), a * b),
                (Fraction(float(a)) + Fraction(float(b)), a + b),
                (Fraction(float(a)) / Fraction(float(b)) if b else Fraction(0), a / b if b else a * 0),
            ):
                expected = Fraction(2) ** 128 if np.isinf(machine) else abs(Fraction(float(machine)))
                assert abs(fl32(exact)) == expected, f"{a!r}, {b!r}: {float(exact)} against {machine!r}"
