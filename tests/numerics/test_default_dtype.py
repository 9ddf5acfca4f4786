"""torch.set_default_dtype, under which models in BF16 are built, reaches no constant of the numerics."""

from __future__ import annotations

import pytest
import torch
from numerics_helpers import assert_same, bits_for, make_tensor, spec_id

from repro.numerics import (
    QuantSpec,
    hadamard_matrix,
    make_operand,
    make_operand_reference,
    quantize,
    sign_vector,
    transform,
)
from repro.numerics.formats import BLOCK_FORMATS
from repro.numerics.hadamard import SIZES, scale_factors


@pytest.fixture(params=[torch.bfloat16, torch.float16, torch.float64], ids=str)
def set_default(request):
    """set_default(): PyTorch has another default dtype, and nothing is left of what was worked out before."""
    before = torch.get_default_dtype()

    def set_it():
        scale_factors.cache_clear()
        torch.set_default_dtype(request.param)

    yield set_it
    torch.set_default_dtype(before)
    scale_factors.cache_clear()


@pytest.mark.parametrize("size", SIZES)
def test_a_transform_is_the_same(size, set_default):
    x, spec = make_tensor(1, (32, 128), "normal"), QuantSpec(BLOCK_FORMATS["mxfp4"], (1, 32))
    signs = sign_vector(size, kind="fixed")
    expected = transform(x, size, signs, dim=1)
    operand = make_operand_reference(x, spec, along=1, hadamard=size, signs=signs)
    matrix = hadamard_matrix(size)
    set_default()
    for kind in ("none", "fixed"):
        assert sign_vector(size, kind=kind).dtype == torch.float32
    assert_same("transform", transform(x, size, sign_vector(size, kind="fixed"), dim=1), expected)
    for make in (make_operand, make_operand_reference):
        ours = make(x, spec, along=1, hadamard=size, signs=sign_vector(size, kind="fixed"))
        assert_same("operand", ours.values, operand.values)
    assert hadamard_matrix(size).dtype == torch.float32
    assert_same("matrix", hadamard_matrix(size), matrix)


@pytest.mark.parametrize("rounding", ["rne", "sr"])
@pytest.mark.parametrize("fmt", BLOCK_FORMATS.values(), ids=lambda f: f.name)
def test_codes_and_values_are_the_same(fmt, rounding, set_default):
    spec = QuantSpec(fmt, fmt.tiles_1d, rounding=rounding)
    x = make_tensor(2, (40, 144), "normal")
    bits = bits_for(x, spec)
    expected = quantize(x, spec, random_bits=bits)
    values = expected.dequantize()
    set_default()
    ours = quantize(x, spec, random_bits=bits_for(x, spec))
    for part in ("codes", "scales", "amax"):
        assert_same(f"{part} {spec_id(spec)}", getattr(ours, part), getattr(expected, part))
    assert_same("values", ours.dequantize(), values)
