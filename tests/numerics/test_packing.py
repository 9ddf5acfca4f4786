"""Packing to 4 bits and the measured size."""

from __future__ import annotations

import pytest
import torch
from numerics_helpers import make_tensor

from repro.numerics import (
    CopyRequest,
    QuantSpec,
    make_operand_reference,
    make_packed,
    make_packed_pair,
    pack,
    pack_codes,
    quantize,
    sign_vector,
    unpack,
    unpack_codes,
)
from repro.numerics.formats import FP8_BLOCK, MXFP4, MXFP8, NVFP4


def test_low_nibble_is_the_even_column():
    assert pack_codes(torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8)).tolist() == [[0x21, 0x0F]]


def test_all_pairs_come_back():
    codes = torch.cartesian_prod(torch.arange(16), torch.arange(16)).to(torch.uint8)
    packed = pack_codes(codes)
    assert packed.dtype == torch.uint8
    assert sorted(packed.flatten().tolist()) == list(range(256))
    assert torch.equal(unpack_codes(packed), codes)


def test_quantised_tensor_survives_packing():
    codes = quantize(make_tensor(0, (33, 64), "normal"), QuantSpec(NVFP4, (1, 16))).codes
    assert torch.equal(unpack_codes(pack_codes(codes)), codes)


def test_odd_number_and_wide_codes_are_refused():
    with pytest.raises(ValueError, match="K must be even, got 3"):
        pack_codes(torch.zeros(2, 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="code 16 does not fit 4 bits"):
        pack_codes(torch.tensor([16, 0], dtype=torch.uint8))


def test_nvfp4_takes_about_half_of_fp8():
    x = make_tensor(1, (256, 1024), "normal")
    size = {
        fmt.name: pack(quantize(x, QuantSpec(fmt, fmt.tiles_1d))).nbytes
        for fmt in (NVFP4, MXFP4, MXFP8, FP8_BLOCK)
    }
    assert size["nvfp4"] == x.numel() * 4.5 / 8 + 4
    assert size["mxfp4"] == x.numel() * 4.25 / 8
    assert size["mxfp8"] == size["fp8_block"] == x.numel() * 8.25 / 8
    assert 0.5 < size["nvfp4"] / size["fp8_block"] < 0.55


@pytest.mark.parametrize("fmt", [NVFP4, MXFP4, MXFP8, FP8_BLOCK], ids=lambda f: f.name)
def test_packing_loses_nothing(fmt):
    quantized = quantize(make_tensor(2, (33, 64), "normal"), QuantSpec(fmt, fmt.tiles_1d))
    packed = pack(quantized)
    assert (packed.num_rows, packed.num_columns) == (33, 64)
    again = unpack(packed)
    for part in ("codes", "scales", "amax"):
        assert torch.equal(getattr(again, part), getattr(quantized, part))


@pytest.mark.parametrize(("shape", "rows"), [((32,), 1), ((2, 3, 32), 6)])
def test_what_quantize_takes_can_be_packed_and_knows_its_size(shape, rows):
    quantized = quantize(make_tensor(5, shape, "normal"), QuantSpec(NVFP4, (1, 16)))
    packed = pack(quantized)
    assert (packed.num_rows, packed.num_columns) == (rows, 32)
    assert torch.equal(unpack(packed).codes, quantized.codes)


@pytest.mark.parametrize("along", [0, 1])
@pytest.mark.parametrize("rounding", ["rne", "sr"])
def test_make_packed_stores_the_operand(along, rounding):
    """Read back it is what the GEMM would have had: transposed, transformed and with the same random bits."""
    x = make_tensor(3, (48, 80), "bf16")
    spec, signs = QuantSpec(NVFP4, (1, 16), rounding=rounding), sign_vector(16, kind="fixed")
    arguments = {"along": along, "hadamard": 16, "signs": signs, "seed": 7 if rounding == "sr" else None}
    packed, expected = make_packed(x, spec, **arguments), make_operand_reference(x, spec, **arguments)
    values = unpack(packed).block_values()
    assert torch.equal(values if along == 1 else values.t(), expected.values)
    assert torch.equal(packed.amax[0], expected.amax)


def test_a_pair_is_two_packed_copies():
    x = make_tensor(4, (32, 64), "bf16")
    row, column = QuantSpec(NVFP4, (1, 16)), QuantSpec(NVFP4, (1, 16), rounding="sr")
    ours = make_packed_pair(x, CopyRequest(row, 1), CopyRequest(column, 0, seed=3))
    expected = make_packed(x, row, along=1), make_packed(x, column, along=0, seed=3)
    for one, other in zip(ours, expected, strict=True):
        for part in ("codes", "scales", "amax"):
            assert torch.equal(getattr(one, part), getattr(other, part))


def test_make_packed_refuses_an_odd_number_of_codes_along_the_blocks():
    x, spec = torch.zeros(3, 4), QuantSpec(NVFP4, (1, 16))
    with pytest.raises(ValueError, match="K must be even, got 3"):
        make_packed(x, spec, along=0)
    assert make_packed(x, spec, along=1).codes.shape == (3, 2)
