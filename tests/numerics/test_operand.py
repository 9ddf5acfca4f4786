"""Operands of an emulated GEMM: orientation, exactness, scales, bits, and the choice of implementation."""

from __future__ import annotations

import logging
import sys

import pytest
import torch
from numerics_helpers import ALL_SPECS, assert_same, make_tensor, spec_id

import repro.numerics.gpu
from repro.numerics import (
    CopyRequest,
    QuantSpec,
    make_operand,
    make_operand_pair,
    make_operand_reference,
    make_packed,
    quantize,
    random_bits,
    seed_tensor,
    sign_vector,
)
from repro.numerics.formats import FP8_BLOCK, FP32_MAX, MXFP4, NVFP4
from repro.numerics.operand import _say_reference_runs, gpu_kernels

NVFP4_1X16 = QuantSpec(NVFP4, (1, 16))
all_specs = pytest.mark.parametrize("spec", ALL_SPECS, ids=spec_id)


def seed_for(spec):
    return 77 if spec.rounding == "sr" else None


@all_specs
@pytest.mark.parametrize("along", [0, 1])
@pytest.mark.parametrize("shape", [(64, 96), (30, 50)])
def test_operand_is_quantise_along_its_dimension(spec, along, shape):
    x = make_tensor(0, shape, "bf16")
    operand = make_operand_reference(x, spec, along=along, seed=seed_for(spec))
    bits = None if spec.rounding == "rne" else random_bits(77, x.shape)
    if along == 0:
        q = quantize(x.t(), spec, random_bits=None if bits is None else bits.t())
        expected = q.block_values().t()
    else:
        q = quantize(x, spec, random_bits=bits)
        expected = q.block_values()
    assert_same("values", operand.values, expected)
    assert operand.values.is_contiguous()
    assert operand.amax == x.abs().max()


@pytest.mark.parametrize("fmt", [NVFP4, MXFP4], ids=lambda f: f.name)
def test_values_of_four_bit_operands_are_exact_in_bf16(fmt):
    """At most 6 significant bits; NVFP4's lie in 2^-10 .. 2688, so a BF16 product is the FP4 product."""
    for regime in ("normal", "mixed_blocks", "sparse"):
        values = make_operand_reference(
            make_tensor(1, (64, 64), regime), QuantSpec(fmt, fmt.tiles_1d), along=1
        ).values
        assert torch.equal(values.bfloat16().float(), values)
        if fmt is NVFP4:
            nonzero = values[values != 0].abs()
            assert nonzero.min() >= 2.0**-10
            assert nonzero.max() <= 2688


def test_product_of_operands_is_the_product_of_the_dequantised():
    x, w = make_tensor(2, (32, 64), "normal"), make_tensor(3, (48, 64), "normal")
    a, b = (make_operand_reference(t, NVFP4_1X16, along=1) for t in (x, w))
    product = (a.values @ b.values.t()) * a.scale * b.scale
    dequantised = [quantize(t, NVFP4_1X16).dequantize().double() for t in (x, w)]
    expected = dequantised[0] @ dequantised[1].t()
    assert (product - expected).norm() / expected.norm() < 1e-6


@pytest.mark.parametrize("magnitude", [1e38, 1.0, 1e-30, 7.9e-36, 1e-36, 1e-37])
def test_scale_is_the_inverse_of_the_encoding_at_every_magnitude(magnitude):
    """Also where s_enc is clamped to FP32 max, which amax / 2688 ignores."""
    x = make_tensor(4, (32, 64), "normal")
    x = x / x.abs().max() * magnitude
    operand = make_operand_reference(x, NVFP4_1X16, along=1)
    error = (operand.values.double() * operand.scale.double() - x.double()).norm() / x.double().norm()
    assert error < 0.12, f"amax {magnitude}: relative error {float(error)}"


def test_scale_is_amax_over_2688_and_none_without_tensor_scale():
    x = make_tensor(5, (16, 16), "normal")
    operand = make_operand_reference(x, NVFP4_1X16, along=1)
    assert operand.scale == x.abs().max() / torch.tensor(2688.0)
    assert make_operand_reference(torch.zeros(16, 16), NVFP4_1X16, along=1).scale == 1 / torch.tensor(
        FP32_MAX
    )
    for fmt in (MXFP4, FP8_BLOCK):
        assert make_operand_reference(x, QuantSpec(fmt, fmt.tiles_1d), along=1).scale is None


def test_hadamard_acts_along_the_contraction_and_cancels():
    g, x = make_tensor(6, (64, 24), "bf16"), make_tensor(7, (64, 40), "bf16")
    exact = g.double().t() @ x.double()
    signs = sign_vector(16, kind="fixed")
    for size in (0, 16):
        s = signs if size else None
        a, b = (make_operand_reference(t, NVFP4_1X16, along=0, hadamard=size, signs=s) for t in (g, x))
        product = (a.values.t() @ b.values) * a.scale * b.scale
        assert (product - exact).norm() / exact.norm() < 0.2


def test_trial_20_two_equal_tensors_get_different_noise():
    x = make_tensor(8, (64, 64), "normal")
    spec = QuantSpec(NVFP4, (1, 16), rounding="sr")
    first, again, other = (make_operand_reference(x, spec, along=1, seed=s).values for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"along": 2}, "dimension 0 or 1, not 2"),
        ({"along": 1, "seed": 3}, "rounding 'rne' takes no seed"),
        ({"along": 1, "hadamard": 12}, "Hadamard size 12"),
        ({"along": 0, "hadamard": 16}, "dimension 0 .* is 24 long"),
    ],
)
@pytest.mark.parametrize("make", [make_operand, make_operand_reference])
def test_bad_arguments_are_named(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(torch.ones(24, 32), NVFP4_1X16, **arguments)


def test_seed_in_a_tensor_is_the_integer():
    x = make_tensor(8, (32, 48), "normal")
    spec = QuantSpec(NVFP4, (1, 16), rounding="sr")
    seed = 2**63 + 77
    for make in (make_operand, make_operand_reference):
        ours = make(x, spec, along=1, seed=seed_tensor([seed]))
        assert torch.equal(ours.values, make(x, spec, along=1, seed=seed).values)
    with pytest.raises(ValueError, match="is one int64 on cpu; got 2 int64 on cpu"):
        make_operand(x, spec, along=1, seed=seed_tensor([1, 2]))
    with pytest.raises(ValueError, match="got 1 int32 on cpu"):
        make_operand(x, spec, along=1, seed=torch.tensor(1, dtype=torch.int32))


def test_stochastic_needs_a_seed_and_a_matrix():
    spec = QuantSpec(NVFP4, (1, 16), rounding="sr")
    with pytest.raises(ValueError, match="rounding 'sr' needs a seed"):
        make_operand_reference(torch.ones(16, 16), spec, along=1)
    with pytest.raises(ValueError, match=r"an operand is a matrix; got shape \(2, 3, 16\)"):
        make_operand_reference(torch.ones(2, 3, 16), NVFP4_1X16, along=1)


@all_specs
@pytest.mark.parametrize("along", [0, 1])
def test_the_chosen_implementation_gives_the_reference_bits(spec, along):
    for regime in ("bf16", "mixed_blocks"):
        x = make_tensor(9, (64, 160), regime)
        for hadamard in (0, 16):
            kwargs = {
                "along": along,
                "hadamard": hadamard,
                "signs": sign_vector(16, kind="fixed") if hadamard else None,
                "seed": seed_for(spec),
            }
            ours, reference = make_operand(x, spec, **kwargs), make_operand_reference(x, spec, **kwargs)
            assert_same("values", ours.values, reference.values)
            assert_same("amax", ours.amax, reference.amax)
            assert (ours.scale is None) == (reference.scale is None)
            if ours.scale is not None:
                assert_same("scale", ours.scale, reference.scale)


def test_trial_19_unfused_emulation_is_said_once(caplog):
    """A device without a fused kernel: here PyTorch's shape-only one, which every machine has."""
    _say_reference_runs.cache_clear()
    x = torch.ones(16, 16, device="meta")
    with caplog.at_level(logging.WARNING, logger="repro.numerics.operand"):
        for _ in range(3):
            operand = make_operand(x, NVFP4_1X16, along=1)
    assert operand.values.shape == (16, 16)
    assert [record.getMessage() for record in caplog.records] == [
        "operands on meta are quantised by the PyTorch reference (not fused)"
    ]


class OnGpu(torch.Tensor):
    """A CPU tensor that says it is a GPU's, as far as the choice of an implementation goes."""

    is_cuda, is_cpu = True, False


def test_trial_19_a_gpu_without_triton_is_said_in_one_line(caplog, monkeypatch):
    """Whatever is asked for: operands, pairs or packed copies, with the reference's bits."""
    monkeypatch.setitem(sys.modules, "repro.numerics.gpu.binding", None)  # what an import then raises
    monkeypatch.delattr(repro.numerics.gpu, "binding", raising=False)
    x = make_tensor(10, (32, 48), "bf16")
    on_gpu, row, column = x.as_subclass(OnGpu), CopyRequest(NVFP4_1X16, 1), CopyRequest(NVFP4_1X16, 0)
    gpu_kernels.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                made = [make_operand(on_gpu, NVFP4_1X16, along=1), *make_operand_pair(on_gpu, row, column)]
                packed = make_packed(on_gpu, NVFP4_1X16)
    finally:
        gpu_kernels.cache_clear()
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith(
        "no Triton kernels: on the GPU the PyTorch reference quantises, and FP8 products"
    )
    assert "repro.numerics.gpu.binding" in message
    for operand, along in zip(made, (1, 1, 0), strict=True):
        expected = make_operand_reference(x, NVFP4_1X16, along=along)
        assert_same(f"values along {along}", operand.values, expected.values)
    assert_same("codes", packed.codes, make_packed(x, NVFP4_1X16).codes)
