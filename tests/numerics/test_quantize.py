"""Quantise: the numbered trials, ties, padding."""

from __future__ import annotations

import math

import pytest
import torch
from numerics_helpers import ALL_SPECS, assert_same, bits_for, make_tensor, spec_id, tensor_with

from repro.numerics import QuantSpec, make_operand_reference, quantize, random_bits
from repro.numerics.formats import BLOCK_FORMATS, E4M3, FP8_BLOCK, MXFP4, MXFP8, NVFP4
from repro.numerics.rounding import decode

NVFP4_1X16 = QuantSpec(NVFP4, (1, 16))
all_specs = pytest.mark.parametrize("spec", ALL_SPECS, ids=spec_id)


def test_trial_01_smallest_block_scale_is_2_to_the_minus_9():
    step = 2.0**-9
    x = tensor_with(448.0, [1.49 * step, -1.49 * step, 0.5 * step])
    q = quantize(x, NVFP4_1X16).dequantize()
    assert q[1, :3].tolist() == [0.001953125, -0.001953125, 0.0009765625]


@pytest.mark.parametrize("tile", NVFP4.tiles)
def test_trial_02_no_nan_byte_in_the_scales(tile):
    x = make_tensor(0, (64, 64), "normal")
    x = x / x.abs().max() * 1e-3
    x[16:32, 16:32] = 0.0
    q = quantize(x, QuantSpec(NVFP4, tile))
    assert int(q.scales.max()) <= 0x7E
    assert not q.dequantize()[16:32, 16:32].any()


@all_specs
def test_trial_03_all_zero_tensor(spec):
    x = torch.zeros(128, 128)
    q = quantize(x, spec, random_bits=bits_for(x, spec))
    assert not q.codes.any()
    assert not q.dequantize().any()
    assert q.dequantize().isfinite().all()
    assert q.amax == 0
    if spec.format is NVFP4:
        assert not q.scales.any()
    operand = make_operand_reference(x, spec, along=1, seed=0 if spec.rounding == "sr" else None)
    assert not operand.values.any()
    assert operand.scale is None or operand.scale.isfinite()


@all_specs
def test_trial_04_zero_block_and_zero_row_in_noise(spec):
    """A zero block costs its own values nothing and nobody else anything."""
    x = make_tensor(1, (260, 260), "normal")
    x[5] = 0.0
    x[:128, 128:256] = 0.0
    q = quantize(x, spec, random_bits=bits_for(x, spec))
    assert not q.codes[5].any()
    assert not q.codes[:128, 128:256].any()
    assert not q.dequantize()[:128, 128:256].any()
    assert q.dequantize().isfinite().all()
    if spec.format is NVFP4:
        assert not q.scales[:128, 8:16].any()


@pytest.mark.parametrize("tile", FP8_BLOCK.tiles)
def test_trial_05_fp8_blocks_of_zeros_and_of_tiny_values(tile):
    spec = QuantSpec(FP8_BLOCK, tile)
    assert not quantize(torch.zeros(128, 128), spec).dequantize().any()
    for magnitude in (1.0, 1e-10, 1e-30, 1e-37):  # at 1e-37 the scale is an FP32 subnormal
        x = make_tensor(2, (128, 128), "normal")
        x = x / x.abs().max() * magnitude
        q = quantize(x, spec)
        assert q.scales.isfinite().all()
        # Half a step of a 3-bit mantissa is 1/16 of a value at most; what is below 2^-15 of the amax may go.
        difference = (q.dequantize().double() - x.double()).abs()
        assert (difference <= x.double().abs() / 15 + magnitude * 2.0**-16).all(), f"amax {magnitude}"


@pytest.mark.parametrize("exponent", [-149, -147, -145, -143, -141])
def test_trial_05_fp8_smallest_subnormal_block_survives(exponent):
    x = torch.zeros(1, 128)
    x[0, 0], x[0, 1] = 2.0**exponent, -(2.0**exponent)
    q = quantize(x, QuantSpec(FP8_BLOCK, (1, 128))).dequantize()
    assert torch.equal(q, x), (q[0, 0].item(), x[0, 0].item())


def test_trial_06_ties_of_a_block():
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    x = tensor_with(2688.0, [6.0, *ties], [-6.0, *(-t for t in ties)])
    q = quantize(x, NVFP4_1X16)
    assert decode(q.scales, E4M3)[1:].flatten().tolist() == [1.0, 1.0]
    values = [6.0, 0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert_same("row 1", q.dequantize()[1, :8], values)
    assert_same("row 2", q.dequantize()[2, :8], [-v for v in values])


@pytest.mark.parametrize(("order", "scale"), [("te", 352.0), ("paper", 320.0)])
def test_trial_07_block_scale_on_a_tie(order, scale):
    x = tensor_with(4.0625, [3.046875])
    q = quantize(x, QuantSpec(NVFP4, (1, 16), scale_order=order))
    assert decode(q.scales, E4M3)[1, 0] == scale


def test_product_with_the_reciprocal_is_not_a_quotient():
    x = tensor_with(1.953125, [1.8984375, 0.244140625])
    q = quantize(x, NVFP4_1X16)
    assert q.codes[1, 1] == 1, "0.5 by multiplication; a division gives 1.0"


@pytest.mark.parametrize(
    ("block", "values", "scale"), [([7.0, 1.0], [8.0, 1.0], 2.0), ([3.0625], [3.0], 1.0), ([6.0], [6.0], 1.0)]
)
def test_trial_08_mx_scale_is_rounded_up(block, values, scale):
    x = torch.zeros(1, 32)
    x[0, : len(block)] = torch.tensor(block)
    q = quantize(x, QuantSpec(MXFP4, (1, 32)))
    assert q.dequantize()[0, : len(block)].tolist() == values
    assert 2.0 ** (int(q.scales[0, 0]) - 127) == scale


@pytest.mark.parametrize("fmt", [MXFP4, MXFP8], ids=lambda f: f.name)
def test_trial_08_mx_never_clips(fmt):
    """Rounded up, the scale leaves every block amax within the element's range."""
    x = make_tensor(3, (512, 32), "every_exponent").abs().clamp(min=2.0**-120)
    q = quantize(x, QuantSpec(fmt, fmt.tiles_1d))
    scale = 2.0 ** (q.scales.double() - 127)
    ratio = x.amax(1, keepdim=True).double() / scale
    assert float(ratio.max()) <= fmt.element.max
    assert float(ratio.min()) > fmt.element.max / 2, "a scale is more than one power of two too large"


@pytest.mark.parametrize("exponent", range(-125, 126, 10))
def test_trial_08_mx_scale_just_above_a_power_of_two(exponent):
    """Where a logarithm in FP32 would be rounded down to the power itself."""
    power = 2.0**exponent
    x = torch.zeros(2, 32)
    x[0, 0] = 6 * power
    x[1, 0] = torch.nextafter(x[0, 0], torch.tensor(math.inf))
    q = quantize(x, QuantSpec(MXFP4, (1, 32)))
    assert (q.scales[:, 0].int() - 127).tolist() == [exponent, exponent + 1]


def test_trial_08_mx_scale_at_the_smallest_power():
    """2^-127, a subnormal of FP32, is a scale; whatever lies above needs 2^-126."""
    x = torch.zeros(3, 32)
    x[0, 0], x[1, 0] = 6 * 2.0**-127, 6 * (2.0**-127 + 2.0**-149)
    assert quantize(x, QuantSpec(MXFP4, (1, 32))).scales[:, 0].tolist() == [0, 1, 0]


def test_trial_10_tiny_tensor_keeps_its_relative_error():
    x = make_tensor(4, (64, 256), "normal")
    x = x / x.abs().max() * 1e-30
    q = quantize(x, NVFP4_1X16)
    error = (q.dequantize().double() - x.double()).norm() / x.double().norm()
    assert error < 0.12


@all_specs
@pytest.mark.parametrize("exponent", [-100, -40, 40, 100])
def test_trial_10_a_power_of_two_changes_nothing_but_the_scale(spec, exponent):
    """2^-100 or 2^100 times the tensor: the same codes, exactly 2^-100 or 2^100 times the values."""
    x = make_tensor(4, (40, 256), "normal")
    x = x / x.abs().max()
    bits = bits_for(x, spec)
    ours, shifted = (quantize(t, spec, random_bits=bits) for t in (x, x * 2.0**exponent))
    assert_same("codes", shifted.codes, ours.codes)
    assert_same("values", shifted.dequantize(), ours.dequantize() * 2.0**exponent)


@all_specs
@pytest.mark.parametrize("shape", [(3, 100), (5, 48), (64, 1000), (512, 60), (1, 1), (17, 129)])
def test_trial_11_any_size_is_padded_with_zeros_exactly(spec, shape):
    x = make_tensor(5, shape, "normal")
    rows, columns = (-(-n // t) * t for n, t in zip(shape, spec.tile, strict=True))
    padded = torch.zeros(rows, columns)
    padded[: shape[0], : shape[1]] = x
    bits = bits_for(x, spec)
    padded_bits = None
    if bits is not None:
        padded_bits = torch.full(padded.shape, 255, dtype=torch.uint8)
        padded_bits[: shape[0], : shape[1]] = bits
    ours, whole = quantize(x, spec, random_bits=bits), quantize(padded, spec, random_bits=padded_bits)
    assert_same("codes", ours.codes, whole.codes[: shape[0], : shape[1]])
    assert_same("scales", ours.scales, whole.scales)
    assert_same("amax", ours.amax, whole.amax)
    assert_same("values", ours.dequantize(), whole.dequantize()[: shape[0], : shape[1]])
    assert ours.scales.shape == (rows, columns // spec.tile[1])


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_trial_13_mean_of_stochastic_rounding_is_the_tensor(name):
    """Within 3 standard errors over 200 draws, beside the hardware's own bias of at most 1/256 step."""
    fmt = BLOCK_FORMATS[name]
    x = make_tensor(6, (32, 256), "normal")
    spec = QuantSpec(fmt, fmt.tiles_1d, rounding="sr")
    draws = torch.stack(
        [
            quantize(x, spec, random_bits=random_bits(seed, x.shape)).dequantize().double()
            for seed in range(200)
        ]
    )
    assert draws.any(), "all zeros"
    mean, standard_error = draws.mean(0), draws.std(0) / math.sqrt(200)
    step = (draws.amax(0) - draws.amin(0)).clamp(min=1e-30)
    # Clipped values can't be right in the mean: their block's scale was rounded down.
    nearest = quantize(x, QuantSpec(fmt, fmt.tiles_1d))
    clipped = (nearest.codes & ~fmt.element.sign_bit & 255) == fmt.element.code_of_max
    z = ((mean - x.double()).abs() - step / 256) / standard_error.clamp(min=1e-30)
    outside = float((z[~clipped & (standard_error > 0)] > 3).double().mean())
    assert outside < 0.006, f"{100 * outside:.2f} % beyond 3 standard errors, 0.27 % expected"
    total = draws[:, ~clipped]
    bias = float(total.mean() - x.double()[~clipped].mean())
    assert abs(bias) < 3 * float(total.mean(1).std()) / math.sqrt(200) + float(step.mean()) / 256


@pytest.mark.parametrize(("form", "shrinkage"), [(NVFP4, 0.0040), (MXFP4, 0.0)], ids=["nvfp4", "mxfp4"])
def test_stochastic_rounding_shrinks_what_the_clamp_cuts_and_nothing_else(form, shrinkage):
    """Mean over 32 draws of the slope of q over x, 2^18 normal values: its standard error is 0.0001."""
    x = torch.randn(512, 512, generator=torch.Generator().manual_seed(0)).bfloat16()
    spec = QuantSpec(form, form.tiles_1d, rounding="sr")
    total = torch.zeros(x.shape, dtype=torch.float64)
    for seed in range(32):
        total += quantize(x, spec, random_bits=random_bits(seed, x.shape)).dequantize().double()
    slope = (total / 32 * x.double()).sum() / x.double().square().sum()
    assert 1 - slope == pytest.approx(shrinkage, abs=4e-4)
