"""Squared ReLU and its gradient: PyTorch's bits, and operands of them."""

from __future__ import annotations

import pytest
import torch
from numerics_helpers import assert_same, make_tensor
from torch.nn.functional import relu

from repro.numerics import (
    CopyRequest,
    QuantSpec,
    SquaredRelu,
    SquaredReluGradient,
    make_operand,
    make_operand_pair,
    materialise,
    sign_vector,
)
from repro.numerics.formats import MXFP4, NVFP4

SHAPE = (64, 96)
EVERY_VALUE = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def every_value_with(others):
    """(every BF16 number, one of `others`), for each of these, as two [., 256] tensors."""
    value = EVERY_VALUE.repeat(len(others)).reshape(-1, 256)
    return value, torch.tensor(others).bfloat16().repeat_interleave(len(EVERY_VALUE)).reshape(-1, 256)


def by_autograd(value, grad):
    """relu(value)^2 and its gradient as PyTorch's eager kernels give them."""
    leaf = value.clone().requires_grad_()
    result = relu(leaf).square()
    result.backward(grad)
    return result.detach(), leaf.grad


@pytest.mark.parametrize("others", [
    [1.0, -1.0, 3.140625, 0.0, -0.0],
    [float("inf"), -float("inf"), float("nan"), 2.0**127, -(2.0**-126)],
    [2.0**-133, -(2.0**-130) * 1.875, 1.9921875 * 2.0**-60],
])  # fmt: skip
def test_every_number_is_pytorchs_forward_and_backward(others):
    value, grad = every_value_with(others)
    result, gradient = by_autograd(value, grad)
    assert_same("forward", materialise(SquaredRelu(value)).float(), result.float())
    assert_same("backward", materialise(SquaredReluGradient(grad, value)).float(), gradient.float())


def test_one_rounding_to_bf16_is_fp32_then_bf16():
    """All products of two significands around BF16's smallest numbers: what a product of BF16 words may rely on."""
    significand = torch.arange(128, 256, dtype=torch.float64)
    exact = significand[:, None] * significand[None, :]
    for exponent in range(-160, -130):
        product = exact * 2.0**exponent
        once = (product / 2.0**-133).round() * 2.0**-133  # half to even
        in_fp32 = product.float()
        is_small = product < 2.0**-126
        assert torch.equal(in_fp32.bfloat16().double()[is_small], once[is_small])


def test_no_gradient_where_the_value_is_not_positive():
    value = torch.tensor([-1.0, -0.0, 0.0, -float("inf")] * 3).bfloat16()
    grad = torch.tensor([float("inf"), float("nan"), -1.0]).bfloat16().repeat_interleave(4)
    gradient = materialise(SquaredReluGradient(grad, value))
    assert_same("gradient", gradient.float(), torch.zeros(12))


def test_sources_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"alike in shape, dtype and device; got \(2, 16\) torch.bfloat16"):
        SquaredReluGradient(torch.ones(2, 16).bfloat16(), torch.ones(2, 32).bfloat16())


@pytest.mark.parametrize("fmt", [NVFP4, MXFP4], ids=lambda f: f.name)
@pytest.mark.parametrize("rounding", ["rne", "sr"])
def test_a_pair_is_two_operands_of_the_materialised_tensor(fmt, rounding):
    value, grad = (make_tensor(seed, SHAPE, "bf16").bfloat16() for seed in (1, 2))
    spec = QuantSpec(fmt, fmt.tiles_1d, rounding=rounding)
    seeds = (3, 4) if rounding == "sr" else (None, None)
    both = (
        CopyRequest(spec, 1, seed=seeds[0]),
        CopyRequest(spec, 0, 32, sign_vector(32, kind="fixed"), seeds[1]),
    )
    for source in (SquaredRelu(value), SquaredReluGradient(grad, value), value):
        for ours, r in zip(make_operand_pair(source, *both), both, strict=True):
            expected = make_operand(
                materialise(source), spec, along=r.along, hadamard=r.hadamard, signs=r.signs, seed=r.seed
            )
            assert_same("values", ours.values, expected.values)
            assert torch.equal(ours.amax, expected.amax)
