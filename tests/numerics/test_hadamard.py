"""The random Hadamard transform: orthogonal, cancelling in a product, in the stated order, refusing bad sizes."""

from __future__ import annotations

import pytest
import torch
from numerics_helpers import assert_same, make_signs, make_tensor

from repro.numerics import hadamard_matrix, sign_vector, transform
from repro.numerics.hadamard import SIZES, rotate

sizes = pytest.mark.parametrize("size", SIZES)


@sizes
def test_trial_12_h_times_its_transpose_is_the_identity(size):
    h = hadamard_matrix(size).double()
    assert (h @ h.t() - torch.eye(size)).abs().max() < 1e-6
    assert torch.equal(h, h.t())


@sizes
@pytest.mark.parametrize("kind", ["none", "fixed", "random"])
def test_trial_12_the_transform_cancels_in_a_product(size, kind):
    x, y = make_tensor(1, (3, 128), "normal").double(), make_tensor(2, (128, 5), "normal").double()
    x, y = (x / x.norm()).float(), (y / y.norm()).float()
    signs = make_signs(size, kind)
    product = rotate(x, size, signs, dim=1) @ rotate(y, size, signs, dim=0)
    assert (product - x @ y).abs().max() < 1e-6


@sizes
def test_rotate_is_the_matrix_product(size):
    x = make_tensor(3, (6, size), "bf16")
    signs = sign_vector(size, kind="random", seed=1)
    expected = (x * signs).double() @ hadamard_matrix(size).double()
    difference = (rotate(x, size, signs, dim=1) - expected).abs().max()
    assert difference < 1e-6 * x.abs().max() * size


@pytest.mark.parametrize("size", [12, 24, 0, -4, 1, 3, 256])
def test_trial_12_other_sizes_are_refused(size):
    for call in (hadamard_matrix, lambda s: sign_vector(s, kind="fixed")):
        with pytest.raises(ValueError, match=f"Hadamard size {size} is no power of two"):
            call(size)


def test_trial_12_a_dimension_that_is_no_multiple_is_named():
    with pytest.raises(ValueError, match=r"dimension 0 of a tensor of shape \(24, 8\) is 24 long.*size 16"):
        transform(torch.ones(24, 8), 16, None, dim=0)


def test_fixed_signs_of_size_16_are_transformer_engines():
    plus_minus = "+++-+------+-+--"
    assert sign_vector(16, kind="fixed").tolist() == [1.0 if c == "+" else -1.0 for c in plus_minus]


@sizes
def test_signs_are_plus_and_minus_one_and_repeat(size):
    assert sign_vector(size, kind="none").tolist() == [1.0] * size
    for kind in ("fixed", "random"):
        signs = make_signs(size, kind)
        assert set(signs.tolist()) <= {1.0, -1.0}
        assert torch.equal(signs, make_signs(size, kind))


def test_random_signs_differ_by_seed():
    drawn = {tuple(sign_vector(16, kind="random", seed=seed).tolist()) for seed in range(50)}
    assert len(drawn) == 50


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="signs are 'none', 'fixed' or 'random', not 'te'"):
        sign_vector(16, kind="te")
    with pytest.raises(ValueError, match="need a seed"):
        sign_vector(16, kind="random")
    with pytest.raises(ValueError, match=r"16 signs expected, got shape \(8,\)"):
        transform(torch.ones(2, 16), 16, torch.ones(8), dim=1)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_dimension_any_stride_same_dtype(dim, dtype):
    x = make_tensor(8, (32, 96), "bf16").to(dtype)[:, ::2]
    signs = sign_vector(16, kind="fixed")
    y = transform(x, 16, signs, dim=dim)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert torch.equal(y, y.bfloat16().to(dtype)), "not BF16 values"
    as_rows = x.movedim(dim, -1).contiguous()
    assert_same("transform", y.float(), transform(as_rows, 16, signs, dim=-1).movedim(-1, dim).float())


@sizes
def test_huge_values_overflow_only_where_the_result_does(size):
    x = torch.zeros(1, size)
    x[0, :2] = 3e38  # their sum is beyond FP32
    y = transform(x, size, None, dim=1)
    expected = x.double() @ hadamard_matrix(size).double()
    fits = expected.abs() < 3.3e38
    assert fits.sum() >= size // 2
    assert y.isfinite()[fits].all(), "overflowed although the result is an FP32 number"
    assert torch.allclose(y.double()[fits], expected[fits], rtol=2**-8)


def test_groups_are_consecutive_and_apart():
    x = torch.zeros(1, 64)
    x[0, 16] = 1.0
    y = transform(x, 16, None, dim=1)
    assert y[0, 16:32].abs().tolist() == [0.25] * 16
    assert y[0, :16].abs().sum() + y[0, 32:].abs().sum() == 0
