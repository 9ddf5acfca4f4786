"""Quantise: dtypes, shapes, non-finite and refused input, and what a call leaves behind."""

from __future__ import annotations

import math

import pytest
import torch
from numerics_helpers import ALL_SPECS, assert_same, bits_for, make_tensor, spec_id, tensor_with

from repro.numerics import QuantSpec, count_nonfinite, make_operand_reference, quantize, random_bits
from repro.numerics.formats import BLOCK_FORMATS, E4M3, MXFP4, NVFP4
from repro.numerics.rounding import decode
from repro.numerics.scaling import tensor_scales

NVFP4_1X16 = QuantSpec(NVFP4, (1, 16))
all_specs = pytest.mark.parametrize("spec", ALL_SPECS, ids=spec_id)


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


def test_what_is_counted_is_a_tensor():
    with pytest.raises(TypeError, match="torch tensor, not list"):
        count_nonfinite([1.0])


def test_infinite_amax_leaves_the_tensor_scale_at_one():
    """So that the other blocks keep finite codes, while amax says what happened."""
    x = tensor_with(math.inf, [6.0, 3.0, -1.5])
    q = quantize(x, NVFP4_1X16)
    assert [float(s) for s in tensor_scales(q.amax, NVFP4_1X16)] == [1.0, 1.0]
    assert q.codes[1, :3].tolist() == [7, 5, 11]
    assert decode(q.scales, E4M3).flatten().tolist() == [448.0, 1.0]


def test_an_infinite_block_has_the_largest_mx_scale_and_leaves_the_others_alone():
    """The code above is UE8M0's NaN, which would say that the input held one."""
    q = quantize(tensor_with(math.inf, [6.0, 3.0, -1.5]), QuantSpec(MXFP4, (1, 32)))
    assert q.scales.flatten().tolist() == [254, 127]
    assert q.codes[:, :3].tolist() == [[7, 0, 0], [7, 5, 11]]


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
