"""Bit for bit against Transformer Engine's reference, every array of every case (tests/golden)."""

from __future__ import annotations

import pytest
from numerics_helpers import GOLDEN_MXFP4, GOLDEN_NVFP4, assert_same, from_bf16_bits, load_golden

from repro.numerics import make_operand_reference, quantize, sign_vector, transform
from repro.numerics.formats import MXFP4, NVFP4, UE8M0, QuantSpec
from repro.numerics.oracle import quantize_oracle
from repro.numerics.rounding import decode
from repro.numerics.scaling import tensor_scales


def side_input(case, side):
    """What the case quantised: the tensor, or its transpose after the Hadamard transform."""
    if side == "row":
        return case.x
    if not case.config["rht_on_columnwise"]:
        return case.x.t()
    signs = sign_vector(16, kind="fixed" if case.config["random_sign"] else "none")
    return transform(case.x.t(), 16, signs, dim=1)


def test_all_cases_are_there():
    assert len(GOLDEN_NVFP4) == 25
    assert len(GOLDEN_MXFP4) == 1


@pytest.mark.parametrize("side", ["row", "col"])
@pytest.mark.parametrize("order", ["te", "paper"])
@pytest.mark.parametrize("name", GOLDEN_NVFP4)
def test_nvfp4_equals_transformer_engine(name, order, side):
    case = load_golden(name)
    x = side_input(case, side)
    if side == "col" and case.config["rht_on_columnwise"]:
        assert_same(
            "after RHT", x.float(), from_bf16_bits(case.arrays["col_input_after_rht_bf16_bits"]).float()
        )
    spec = QuantSpec(NVFP4, tuple(case.config["tile"]), scale_order=order)
    q = quantize(x, spec)

    def expected(array):
        older = f"{side}_{array}_le213"
        return case.arrays[older if order == "paper" and older in case.arrays else f"{side}_{array}"]

    assert_same("codes", q.codes, expected("codes"))
    assert_same("scales", q.scales, expected("scale_e4m3"))
    assert_same("amax", q.amax, expected("amax"))
    s_enc, s_dec = tensor_scales(q.amax, spec)
    assert_same("s_enc", s_enc, expected("s_enc"))
    assert_same("s_dec", s_dec, expected("s_dec"))
    if order == "te" and f"{side}_dequant_fp32" in case.arrays:
        assert_same("dequantised", q.dequantize(), expected("dequant_fp32"))


def test_older_order_differs_where_the_case_says_so():
    case = load_golden("21_normal_bf16_256x256_1x16_rht")
    te, paper = (quantize(case.x, QuantSpec(NVFP4, (1, 16), scale_order=o)) for o in ("te", "paper"))
    counted = case.config["n_diff_vs_TE_le_2.13"]
    assert int((te.scales != paper.scales).sum()) == counted["row_scale_e4m3"] == 58
    assert int((te.codes != paper.codes).sum()) == counted["row_codes"] == 143


@pytest.mark.parametrize("name", GOLDEN_MXFP4)
def test_mxfp4_equals_transformer_engine(name):
    case = load_golden(name)
    q = quantize(case.x, QuantSpec(MXFP4, (1, 32)))
    assert_same("codes", q.codes, case.arrays["row_codes"])
    assert_same("scales", q.scales, case.arrays["row_scale_e8m0"])
    assert_same("scale values", decode(q.scales, UE8M0), case.arrays["row_scale_fp32_pow2"])


@pytest.mark.parametrize("name", GOLDEN_NVFP4)
def test_operand_along_the_rows_is_the_column_copy(name):
    case = load_golden(name)
    rht = case.config["rht_on_columnwise"]
    signs = sign_vector(16, kind="fixed") if rht and case.config["random_sign"] else None
    spec = QuantSpec(NVFP4, tuple(case.config["tile"]))
    operand = make_operand_reference(case.x, spec, along=0, hadamard=16 if rht else 0, signs=signs)
    column_copy = quantize(side_input(case, "col"), spec)
    assert_same("codes", column_copy.codes, case.arrays["col_codes"])
    assert_same("operand", operand.values, column_copy.block_values().t())
    assert_same("amax", operand.amax.reshape(1), case.arrays["col_amax"])


@pytest.mark.parametrize("name", [n for n in GOLDEN_NVFP4 if n[:2] in ("06", "09", "11", "20", "23", "24")])
def test_oracle_equals_transformer_engine(name):
    case = load_golden(name)
    result = quantize_oracle(case.x.float().tolist(), QuantSpec(NVFP4, tuple(case.config["tile"])))
    assert_same("codes", result.codes, case.arrays["row_codes"])
    assert_same("scales", result.scales, case.arrays["row_scale_e4m3"])
    assert_same("dequantised", result.dequantized, case.arrays["row_dequant_fp32"])
