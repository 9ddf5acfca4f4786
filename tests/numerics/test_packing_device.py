"""Packing, FP8 copies and the card's FP8 product on a GPU."""

from __future__ import annotations

import logging

import pytest
import torch
from numerics_helpers import ALL_SPECS, GOLDEN_MXFP4, GOLDEN_NVFP4, REGIMES, spec_id

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

import new_format_cases
import packing_cases
import tall_packing_cases
from case_tools import finite, request
from tall_cases import alone_on_the_gpu

from repro.numerics import (
    CopyRequest,
    QuantSpec,
    make_packed,
    make_packed_pair,
    packing,
)
from repro.numerics.formats import FP8_BLOCK, MXFP4, MXFP8, NVFP4
from repro.numerics.gpu import packing as packing_gpu
from repro.numerics.gpu.fp8_operand import fp8_copies
from repro.numerics.gpu.fp8_product import block_scaled_product, obstacle

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
both_kinds = pytest.mark.parametrize("square", [False, True], ids=["1x128", "128x128"])
needs_card_product = pytest.mark.skipif(
    bool(obstacle(torch.device("cuda", 0))), reason=str(obstacle(torch.device("cuda", 0)))
)


@pytest.mark.parametrize("spec", ALL_SPECS, ids=spec_id)
@pytest.mark.parametrize("along", [0, 1])
def test_packed_form_of_every_spec(spec, along):
    dtype = torch.bfloat16 if along == 1 else torch.float32
    packing_cases.check_spec(spec, along, dtype, DEVICE, regimes=REGIMES, shape=(96, 160))
    packing_cases.check_spec(spec, along, dtype, DEVICE, regimes=("normal",), shape=(130, 1000))


@pytest.mark.parametrize("fmt", new_format_cases.formats(), ids=lambda f: f.name)
@pytest.mark.parametrize("rounding", ["rne", "sr"])
def test_formats_that_only_a_record_makes_known(fmt, rounding):
    for dtype in (torch.bfloat16, torch.float32):
        new_format_cases.check(fmt, dtype, rounding, DEVICE)


def test_tiles_that_are_no_powers_of_two():
    new_format_cases.check_odd_tile(DEVICE)


@pytest.mark.parametrize("fmt", [NVFP4, MXFP4, MXFP8, FP8_BLOCK], ids=lambda f: f.name)
def test_packed_form_of_non_finite_values(fmt):
    packing_cases.check_non_finite(QuantSpec(fmt, fmt.tiles_1d), DEVICE)


@pytest.mark.parametrize("fmt", [NVFP4, MXFP4], ids=lambda f: f.name)
@pytest.mark.parametrize("size", [2, 16, 128])
def test_packed_form_after_a_transform(fmt, size):
    for along in (0, 1):
        for rounding in ("rne", "sr"):
            r = request(QuantSpec(fmt, fmt.tiles_1d, rounding=rounding), along, size)
            packing_cases.check_packed(finite((128, 256), "mixed_blocks", torch.bfloat16), r, DEVICE)


@pytest.mark.parametrize("pair", list(packing_cases.pairs()), ids=lambda p: spec_id(p[0].spec))
def test_two_packed_copies_from_one_pass(pair):
    for dtype in (torch.bfloat16, torch.float32):
        for shape in ((256, 1024), (128, 2080)):
            packing_cases.check_pair(*pair, DEVICE, shape=shape, dtype=dtype)
        packing_cases.check_strides(pair, dtype, DEVICE)


@pytest.mark.parametrize("name", GOLDEN_NVFP4 + GOLDEN_MXFP4)
def test_packed_form_of_golden_cases(name):
    packing_cases.check_golden(name, DEVICE)


def test_trials_of_other_implementations():
    packing_cases.check_trials(DEVICE)


def test_make_packed_takes_the_kernel_and_says_nothing(caplog, monkeypatch):
    calls = []
    store = packing_gpu.StorePass.__call__
    monkeypatch.setattr(packing_gpu.StorePass, "__call__", lambda *a: (calls.append(1), store(*a))[1])
    x, spec = torch.randn(64, 64, device=DEVICE), QuantSpec(NVFP4, (1, 16))
    with caplog.at_level(logging.WARNING):
        make_packed(x, spec)
        make_packed_pair(x, CopyRequest(spec, 1), CopyRequest(spec, 0))
    assert calls == [1, 1]
    assert not caplog.records


def test_what_the_kernel_does_not_take_is_packed_by_the_reference_with_one_line(caplog):
    packing._say_reference_runs.cache_clear()
    x = torch.randn(32, 32, dtype=torch.float16)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            ours = make_packed(x.to(DEVICE), QuantSpec(NVFP4, (1, 16)))
    packing_cases.assert_same_packed("float16", ours, make_packed(x, QuantSpec(NVFP4, (1, 16))))
    assert [record.getMessage() for record in caplog.records] == [
        "tensors are packed by the PyTorch reference (same bits, much slower): float16 input"
    ]


@both_kinds
@pytest.mark.parametrize("regime", REGIMES)
def test_fp8_copies_in_every_regime(square, regime):
    packing_cases.check_fp8_regime(regime, square, DEVICE)
    packing_cases.check_fp8_non_finite(square, DEVICE)


def test_fp8_copies_of_every_significand_under_every_amax():
    packing_cases.check_fp8_significands(DEVICE)


@both_kinds
@pytest.mark.parametrize("shape", [(1, 1), (130, 300), (3, 100), (300, 4128), (1024, 640)])
def test_fp8_copies_are_padded_with_zeros(square, shape):
    for dtype in (torch.float32, torch.bfloat16):
        for rows, columns in ((True, True), (True, False), (False, True)):
            x = finite(shape, "normal", dtype)
            packing_cases.check_fp8(x, DEVICE, square=square, rows=rows, columns=columns)


@both_kinds
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fp8_copies_of_strided_input(square, dtype):
    packing_cases.check_fp8_strides(square, dtype, DEVICE)


def test_more_than_two_to_the_31_elements_are_stored_and_multiplied():
    """The product is large itself, and its first operand."""
    rows, columns = 2**17 + 128, 2**14
    with alone_on_the_gpu():
        if torch.cuda.mem_get_info()[0] < 40e9:
            pytest.skip("needs 40 GB of free GPU memory")
        for requests in tall_packing_cases.tall_requests():
            tall_packing_cases.check_last_rows(requests, DEVICE, rows=rows, columns=columns)
        for square in (False, True):
            tall_packing_cases.check_fp8_last_rows(square, DEVICE, rows=rows, columns=columns)
            for n, k in ((columns, 256), (256, columns)):
                tall_packing_cases.check_emulated_last_rows(
                    DEVICE, rows=rows, columns=n, contracted=k, square=square
                )


@both_kinds
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(130, 300, 1000), (512, 4128, 640)])
def test_emulated_product_is_exact_up_to_fp32_sums(square, dtype, shape):
    packing_cases.check_emulated_product(shape, square, dtype, DEVICE)


@needs_card_product
@both_kinds
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(256, 128, 128), (130, 300, 1000), (512, 4128, 640), (17, 48, 4128)])
def test_card_product_is_within_the_sums_of_its_tensor_cores(square, dtype, shape):
    """An instruction aligns 32 products and the sum so far to the largest of them and cuts what lies 13 bits below:
    33 terms, four instructions a block, none larger than the sum of the block's magnitudes."""
    m, n, k = shape
    a = fp8_copies(finite((m, k), "normal", torch.bfloat16).to(DEVICE)).rows
    b = fp8_copies(finite((n, k), "normal", torch.float32, seed=2).to(DEVICE), square=square).rows
    ours = block_scaled_product(a, b, dtype=dtype)
    assert ours.shape == (m, n)
    left, right = a.values().double(), b.values().double()
    exact = left @ right.t()
    bound = 4 * 33 * 2.0**-13 * (left.abs() @ right.abs().t())
    if dtype == torch.bfloat16:
        bound = bound + 2.0**-8 * exact.abs()
    assert ((ours.double() - exact).abs() <= bound).all()


@needs_card_product
def test_nan_and_infinity_come_through_the_card_product():
    x = finite((128, 256), "normal", torch.bfloat16)
    x[3, 5], x[4, 5] = float("nan"), float("inf")
    a = fp8_copies(x.to(DEVICE)).rows
    b = fp8_copies(finite((64, 256), "normal", torch.float32).to(DEVICE), square=True).rows
    ours = block_scaled_product(a, b, dtype=torch.bfloat16)
    assert not ours[3].isfinite().any()
    assert not ours[4].isfinite().any()
    assert ours[5:].isfinite().all()
