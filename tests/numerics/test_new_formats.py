"""A format is a record: whatever it says, `make_operand` gives the reference's bits, by the kernel or without it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from numerics_helpers import assert_same, make_tensor, spec_id

from repro.numerics import QuantSpec, make_operand, make_operand_reference, quantize
from repro.numerics.cpu import binding
from repro.numerics.formats import BLOCK_FORMATS, MXFP4, NVFP4

#: 1-D and square tiles that no format has: below a vector, no power of two, no whole panel of columns, several rows.
TILES = [((1, 8), (8, 8)), ((1, 24), (24, 24)), ((1, 64), (64, 64)), ((2, 16), (4, 16)), ((1, 240), (96, 1))]


@pytest.mark.parametrize("tiles", TILES, ids=str)
@pytest.mark.parametrize("fmt", BLOCK_FORMATS.values(), ids=lambda f: f.name)
def test_other_tiles_have_the_reference_bits(fmt, tiles):
    x = make_tensor(1, (96, 240), "mixed_blocks")
    other = dataclasses.replace(fmt, name="other", tiles_1d=tiles[0], tiles_2d=tiles[1])
    for tile in tiles:
        for along, hadamard in ((0, 0), (1, 0), (0, 32), (1, 2)):
            spec = QuantSpec(other, tile)
            ours = make_operand(x, spec, along=along, hadamard=hadamard)
            expected = make_operand_reference(x, spec, along=along, hadamard=hadamard)
            assert_same(f"{spec_id(spec)} along {along} H{hadamard}", ours.values, expected.values)


@pytest.mark.parametrize("fmt", [NVFP4, MXFP4], ids=lambda f: f.name)
def test_tiles_of_other_powers_of_two_stay_with_the_kernel(fmt):
    wide = dataclasses.replace(fmt, name="wide", tiles_1d=(1, 64), tiles_2d=(64, 64))
    assert all(binding._plan(QuantSpec(wide, tile)).is_supported for tile in wide.tiles)
    assert not binding._plan(QuantSpec(dataclasses.replace(wide, tiles_1d=(1, 8)), (1, 8))).is_supported


@pytest.mark.parametrize("columns", [8, 24])
def test_each_block_of_another_size_has_a_scale_of_its_own(columns):
    """By hand: under a tensor amax of 2688 a block's scale is a sixth of its amax, which is then code 7."""
    other = dataclasses.replace(NVFP4, name="other", tiles_1d=(1, columns))
    x = torch.zeros(1, 3 * columns)
    x[0, ::columns] = torch.tensor([2688.0, 6.0, 96.0])
    quantized = quantize(x, QuantSpec(other, (1, columns)))
    assert quantized.codes[0, ::columns].tolist() == [7, 7, 7]
    assert torch.equal(quantized.dequantize(), x)
