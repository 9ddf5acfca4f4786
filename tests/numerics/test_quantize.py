"""Quantise: the numbered trials, padding, dtypes, non-finite and refused input."""

from __future__ import annotations

import math

import pytest
import torch
from numerics_helpers import ALL_SPECS, assert_same, make_tensor, spec_id

from repro.numerics import QuantSpec, count_nonfinite, make_operand_reference, quantize, random_bits
from repro.numerics.formats import BLOCK_FORMATS, E4M3, FP8_BLOCK, MXFP4, MXFP8, NVFP4
from repro.numerics.rounding import decode
from repro.numerics.scaling import tensor_scales

NVFP4_1X16 = QuantSpec(NVFP4, (1, 16))
all_specs = pytest.mark.parametrize("spec", ALL_SPECS, ids=spec_id)


def bits_for(x, spec, seed=0):
    return random_bits(seed, x.shape) if spec.rounding == "sr" else None


def tensor_with(amax, *blocks):
    """One row a block of 16, after a row that holds nothing but the tensor's amax."""
    x = torch.zeros(1 + len(blocks), 16)
    x[0, 0] = amax
    for row, block in enumerate(blocks, 1):
        x[row, : len(block)] = torch.tensor(block)
    return x


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


@all_specs
def test_bfloat16_and_float16_are_their_values(spec):
    x = make_tensor(7, (20, 40), "normal").bfloat16()
    x = x / 2 ** x.abs().max().log2().ceil()
    bits = bits_for(x, spec)
    for narrow in (x, x.half()):
        ours, wide = (quantize(t, spec, random_bits=bits) for t in (narrow, narrow.float()))
        assert_same("codes", ours.codes, wide.codes)
        assert_same("scales", ours.scales, wide.scales)
        assert ours.amax.dtype == torch.float32


def test_leading_dimensions_are_rows():
    x = make_tensor(8, (2, 3, 32), "normal")
    ours, flat = quantize(x, NVFP4_1X16), quantize(x.reshape(6, 32), NVFP4_1X16)
    assert ours.codes.shape == ours.dequantize().shape == x.shape
    assert_same("codes", ours.codes.reshape(6, 32), flat.codes)
    assert_same("scales", ours.scales, flat.scales)
    assert quantize(x[0, 0], NVFP4_1X16).codes.shape == (32,)


def test_square_tiles_of_a_transpose_are_the_transposed_codes():
    x = make_tensor(9, (48, 80), "normal")
    for fmt in BLOCK_FORMATS.values():
        spec = QuantSpec(fmt, fmt.tiles_2d)
        assert_same("codes", quantize(x.t(), spec).codes, quantize(x, spec).codes.t())
        assert_same("values", quantize(x.t(), spec).dequantize(), quantize(x, spec).dequantize().t())


@all_specs
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite_is_never_made_plausible(spec, bad):
    x = make_tensor(10, (130, 130), "normal")
    x[3, 7] = bad
    assert count_nonfinite(x) == 1
    q = quantize(x, spec, random_bits=bits_for(x, spec))
    assert not q.amax.isfinite().any()
    assert not q.dequantize()[3, 7].isfinite()
    if math.isnan(bad):
        assert q.codes[3, 7] == 0
        assert q.block_values()[3, 7].isnan(), "its block's scale is a number"
        assert q.amax.isnan().all()
    operand = make_operand_reference(x, spec, along=1, seed=0 if spec.rounding == "sr" else None)
    product = operand.values if operand.scale is None else operand.values * operand.scale
    assert not product[3, 7].isfinite()
    assert not operand.amax.isfinite()


def test_infinite_amax_leaves_the_tensor_scale_at_one():
    """So that the other blocks keep finite codes, while amax says what happened."""
    x = tensor_with(math.inf, [6.0, 3.0, -1.5])
    q = quantize(x, NVFP4_1X16)
    assert [float(s) for s in tensor_scales(q.amax, NVFP4_1X16)] == [1.0, 1.0]
    assert q.codes[1, :3].tolist() == [7, 5, 11]
    assert decode(q.scales, E4M3).flatten().tolist() == [448.0, 1.0]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(0, 16), r"at least one row with one value, got shape \(0, 16\)"),
        (torch.zeros(4, 0), r"got shape \(4, 0\)"),
        (torch.tensor(1.0), r"got shape \(\)"),
        (torch.zeros(2, 16, dtype=torch.int32), "float32, bfloat16 or float16, not int32"),
        (torch.zeros(2, 16, dtype=torch.float64), "not float64"),
    ],
)
def test_refused_tensors(x, message):
    with pytest.raises(ValueError, match=message):
        quantize(x, NVFP4_1X16)


def test_bits_are_given_exactly_when_they_are_needed():
    x = torch.ones(2, 16)
    stochastic = QuantSpec(NVFP4, (1, 16), rounding="sr")
    with pytest.raises(ValueError, match="needs random_bits"):
        quantize(x, stochastic)
    with pytest.raises(ValueError, match="the rounding is 'rne'"):
        quantize(x, NVFP4_1X16, random_bits=random_bits(0, x.shape))
    for wrong in (random_bits(0, (16, 2)), random_bits(0, x.shape).int()):
        with pytest.raises(ValueError, match=r"must be uint8 of shape \(2, 16\)"):
            quantize(x, stochastic, random_bits=wrong)


def test_input_is_left_alone_and_no_gradient_flows():
    x = make_tensor(11, (4, 32), "normal").requires_grad_()
    before = x.detach().clone()
    q = quantize(x, NVFP4_1X16)
    assert torch.equal(x.detach(), before)
    assert not q.dequantize().requires_grad


def test_works_in_training_after_a_call_in_inference_mode():
    x = make_tensor(12, (4, 32), "normal")
    with torch.inference_mode():
        quantize(x, NVFP4_1X16).dequantize()
    w = torch.ones(32, requires_grad=True)
    (quantize(x, NVFP4_1X16).dequantize() * w).sum().backward()
    assert w.grad is not None
