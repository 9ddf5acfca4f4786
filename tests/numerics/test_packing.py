"""Packing to 4 bits and the measured size."""

from __future__ import annotations

import pytest
import torch
from numerics_helpers import make_tensor

from repro.numerics import QuantSpec, pack_codes, quantize, stored_bytes, unpack_codes
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
        fmt.name: stored_bytes(quantize(x, QuantSpec(fmt, fmt.tiles_1d)))
        for fmt in (NVFP4, MXFP4, MXFP8, FP8_BLOCK)
    }
    assert size["nvfp4"] == x.numel() * 4.5 / 8 + 4
    assert size["mxfp4"] == x.numel() * 4.25 / 8
    assert size["mxfp8"] == size["fp8_block"] == x.numel() * 8.25 / 8
    assert 0.5 < size["nvfp4"] / size["fp8_block"] < 0.55
