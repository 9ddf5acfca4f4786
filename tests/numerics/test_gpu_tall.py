"""Tensors of more than 2^31 elements on a GPU: no index of the Triton kernels overflows."""

from __future__ import annotations

import pytest
import torch
from numerics_helpers import spec_id

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

import tall_cases

from repro.numerics import QuantSpec, make_operand, make_operand_reference, quantize
from repro.numerics.formats import FP8_BLOCK, MXFP4, NVFP4
from repro.numerics.random_bits import philox4x32

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


@pytest.fixture
def alone_on_the_gpu():
    with tall_cases.alone_on_the_gpu():
        if torch.cuda.mem_get_info()[0] < 40e9:
            pytest.skip("needs 40 GB of free GPU memory")
        yield


@pytest.mark.parametrize(
    "spec",
    [QuantSpec(NVFP4, (16, 16)), QuantSpec(MXFP4, (1, 32)), QuantSpec(FP8_BLOCK, (1, 128))],
    ids=spec_id,
)
@pytest.mark.parametrize("along", [0, 1])
def test_more_than_two_to_the_31_elements_of_fp32(spec, along, alone_on_the_gpu):
    tall_cases.check_last_rows(spec, along, torch.float32, DEVICE, rows=2**17 + 128, columns=2**14)


@pytest.mark.parametrize("rounding", ["rne", "sr"])
def test_more_than_two_to_the_31_elements(rounding, alone_on_the_gpu):
    """The last rows of a large tensor are those of a small one under the same tensor amax (RNE), and differ from
    what a 32-bit index would have read."""
    rows, columns = 2**17 + 16, 2**14
    x = torch.zeros(rows, columns, dtype=torch.bfloat16, device=DEVICE)
    generator = torch.Generator(DEVICE).manual_seed(1)
    x[-16:] = torch.randn(16, columns, generator=generator, device=DEVICE).bfloat16()
    spec = QuantSpec(NVFP4, (1, 16), rounding=rounding)
    seed = None if rounding == "rne" else 5
    ours = make_operand(x, spec, along=1, seed=seed)
    small = make_operand_reference(x[-16:], QuantSpec(NVFP4, (1, 16)), along=1)
    assert ours.amax == small.amax
    if rounding == "rne":
        assert torch.equal(ours.values[-16:].float(), small.values)
        column = make_operand(x, spec, along=0, hadamard=16)
        expected = make_operand_reference(x[-16:], spec, along=0, hadamard=16)
        assert torch.equal(column.values[-16:].float(), expected.values)
        assert torch.count_nonzero(column.values[:-16]) == 0
    else:
        first = (rows - 16) * columns // 16
        block = torch.arange(first, first + columns, dtype=torch.int64, device=DEVICE)
        zero = torch.zeros_like(block)
        words = torch.stack(philox4x32((block & 0xFFFFFFFF, block >> 32, zero, zero), (5, 0)), 1)
        shifts = torch.arange(0, 32, 8, device=DEVICE)
        bits = (words.unsqueeze(-1) >> shifts & 0xFF).to(torch.uint8).reshape(16, columns)
        expected = quantize(x[-16:], spec, random_bits=bits).block_values()
        assert torch.equal(ours.values[-16:].float(), expected)
    assert torch.count_nonzero(ours.values[:-16]) == 0


@pytest.mark.parametrize("rounding", ["rne", "sr"])
@pytest.mark.parametrize("kind", tall_cases.SOURCES)
def test_pairs_of_more_than_two_to_the_31_elements(kind, rounding, alone_on_the_gpu):
    tall_cases.check_tall_pair(kind, rounding, DEVICE, rows=2**17 + 128, columns=2**14)


@pytest.mark.parametrize("rounding", ["rne", "sr"])
@pytest.mark.parametrize(
    ("fmt", "size"), tall_cases.KINDS[1:], ids=lambda given: getattr(given, "name", given)
)
def test_pairs_of_the_general_kernel_of_more_than_two_to_the_31_elements(
    fmt, size, rounding, alone_on_the_gpu
):
    size_of_x = {"rows": 2**17 + 128, "columns": 2**14}
    tall_cases.check_tall_pair("tensor", rounding, DEVICE, **size_of_x, fmt=fmt, size=size)
