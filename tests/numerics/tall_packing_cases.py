"""What storing and multiplying tensors of more than 2^31 elements is held to: no index has overflowed.

As tall_cases.py: smaller in the interpreter, which guards the checks.
"""

from __future__ import annotations

import torch
from case_tools import finite, packed_reference, request
from numerics_helpers import assert_same
from tall_cases import LAST, tall

from repro.numerics import CopyRequest, QuantSpec
from repro.numerics.formats import MXFP4, NVFP4
from repro.numerics.gpu.fp8_emulation import emulated_product
from repro.numerics.gpu.fp8_operand import fp8_copies
from repro.numerics.gpu.packing import pack_gpu


def check_last_rows(requests, device, *, rows, columns):
    """As in tall_cases: the last rows of a tall tensor are stored as those of a small one are, all others as zeros.
    One copy, or two of one pass; rounded to nearest."""
    x = tall(rows, columns, torch.bfloat16, device)
    for packed, r in zip(pack_gpu(x, requests), requests, strict=True):
        expected = packed_reference(x[-LAST:].cpu(), r)
        for part in ("codes", "scales"):
            ours, small = getattr(packed, part), getattr(expected, part)
            size, total = small.shape[1 - r.along], ours.shape[1 - r.along]
            last, others = ours.narrow(1 - r.along, -size, size), ours.narrow(1 - r.along, 0, total - size)
            assert_same(f"{part} along {r.along}", last.cpu(), small)
            assert torch.count_nonzero(others) == 0, part


def tall_requests():
    """Of the copies whose last rows are checked: each alone, and two from one pass."""
    row, column = CopyRequest(QuantSpec(NVFP4, (1, 16)), 1), CopyRequest(QuantSpec(NVFP4, (1, 16)), 0)
    rotated = request(QuantSpec(MXFP4, (1, 32)), 0, 32)
    return (row,), (column,), (row, column), (CopyRequest(QuantSpec(MXFP4, (1, 32)), 1), rotated)


def check_fp8_last_rows(square, device, *, rows, columns):
    x = tall(rows, columns, torch.bfloat16, device)
    ours, small = (fp8_copies(part, square=square, columns=True) for part in (x, x[-LAST:]))
    codes, last = ours.rows.codes.view(torch.uint8), small.rows.codes.view(torch.uint8)
    assert torch.equal(codes[-LAST:], last)
    assert torch.count_nonzero(codes[:-LAST]) == 0
    codes, last = ours.columns.codes.view(torch.uint8), small.columns.codes.view(torch.uint8)
    assert torch.equal(codes[:, -LAST:], last)
    assert torch.count_nonzero(codes[:, :-LAST]) == 0
    by_rows, by_columns = ours.rows.scales, ours.columns.scales
    if square:
        assert torch.equal(by_rows[-1:], small.rows.scales)
        assert torch.equal(by_columns[:, rows // 128 - 1], small.columns.scales[:, 0])
    else:
        assert torch.equal(by_rows[:, -LAST:], small.rows.scales)
        assert torch.equal(by_columns[-1:], small.columns.scales)


def check_emulated_last_rows(device, *, rows, columns, contracted, square=True):
    """A tall product [rows, columns]: its last rows are the product of the last rows alone, all others are zeros.

    `rows` is a multiple of the product's tile, so that the sums have one order.
    """
    a = fp8_copies(tall(rows, contracted, torch.bfloat16, device))
    last = fp8_copies(tall(rows, contracted, torch.bfloat16, device)[-LAST:])
    b = fp8_copies(finite((columns, contracted), "normal", torch.float32).to(device), square=square)
    ours = emulated_product(a.rows, b.rows, dtype=torch.bfloat16)
    assert torch.equal(ours[-LAST:], emulated_product(last.rows, b.rows, dtype=torch.bfloat16))
    assert ours[-LAST:].any()
    assert torch.count_nonzero(ours[:-LAST]) == 0


def interpreter_checks():
    for asked in tall_requests():
        yield (
            f"last rows of {len(asked)} {asked[0].spec.format.name}",
            lambda a=asked: check_last_rows(a, "cpu", rows=LAST + 32, columns=80),
        )
    yield (
        "last rows of the fp8 emulated product",
        lambda: check_emulated_last_rows("cpu", rows=256, columns=144, contracted=144),
    )
    for square in (False, True):
        yield (
            f"fp8 last rows {square}",
            lambda s=square: check_fp8_last_rows(s, "cpu", rows=256, columns=144),
        )
