"""Format records: every code decodes as torch's types do, and the records say what they should."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
import torch
from numerics_helpers import assert_same

from repro.numerics import formats
from repro.numerics.formats import BLOCK_FORMATS, FP8_BLOCK, MXFP4, MXFP8, NVFP4, QuantSpec, block_format
from repro.numerics.rounding import decode


def test_e2m1_values():
    assert formats.E2M1.magnitudes == (0, 0.5, 1, 1.5, 2, 3, 4, 6)
    assert [formats.E2M1.decode(code) for code in range(8, 16)] == [-0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        (formats.E4M3, torch.float8_e4m3fn),
        (formats.E5M2, torch.float8_e5m2),
        (formats.UE8M0, torch.float8_e8m0fnu),
    ],
    ids=["E4M3", "E5M2", "UE8M0"],
)
def test_trial_09_all_256_bytes_decode_as_torch_does(element, dtype):
    codes = torch.arange(256, dtype=torch.uint8)
    assert_same("decoded", decode(codes, element), codes.view(dtype).float())
    assert_same("scalar", [element.decode(c) for c in range(256)], decode(codes, element).double())


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        (formats.E4M3, torch.float8_e4m3fn),
        (formats.E5M2, torch.float8_e5m2),
        (formats.BF16, torch.bfloat16),
        (formats.FP32, torch.float32),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_limits_are_torch_finfo(element, dtype):
    info = torch.finfo(dtype)
    assert (element.bits, element.max, element.min_normal) == (info.bits, info.max, info.smallest_normal)
    assert element.min_subnormal == info.smallest_normal * info.eps


def test_trial_01_smallest_e4m3_is_2_to_the_minus_9():
    assert formats.E4M3.min_subnormal == 2.0**-9
    assert formats.E4M3.decode(1) == 2.0**-9


def test_constants():
    assert torch.finfo(torch.float32).max == formats.FP32_MAX == formats.FP32.max
    assert formats.FP32.min_subnormal == formats.FP32_MIN_SUBNORMAL == 2.0**-149
    assert NVFP4.tensor_max == 2688


def test_bits_per_value():
    assert NVFP4.bits_per_value() == 4.5
    assert NVFP4.bits_per_value((16, 16)) == 4.03125
    assert MXFP4.bits_per_value() == 4.25
    assert MXFP8.bits_per_value() == 8.25
    assert FP8_BLOCK.bits_per_value() == 8.25


def test_names_lead_to_records():
    assert {name: fmt.name for name, fmt in BLOCK_FORMATS.items()} == {
        n: n for n in ("nvfp4", "mxfp4", "fp8_block", "mxfp8")
    }
    assert block_format("mxfp4") is MXFP4


@pytest.mark.parametrize(
    ("typo", "meant"), [("nvpf4", "nvfp4"), ("NVFP4", "nvfp4"), ("fp8block", "fp8_block")]
)
def test_unknown_format_names_the_nearest(typo, meant):
    with pytest.raises(ValueError, match=f"unknown format '{typo}'.*'{meant}'"):
        block_format(typo)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensor_scale": False}, "odd: two_level needs tensor_scale"),
        ({"scale": formats.UE8M0}, r"scale of two_level is an 8-bit one .* \(E4M3\), not UE8M0"),
        ({"scale": formats.FP32}, "not FP32"),
        ({"scale_rule": "amax_over_max"}, "scale of amax_over_max is FP32, not E4M3"),
        ({"scale_rule": "power_of_two_up", "scale": formats.UE8M0}, "power_of_two_up takes no tensor_scale"),
        ({"scale_rule": "mx"}, "one of two_level, power_of_two_up, amax_over_max, not 'mx'"),
        ({"element": formats.BF16}, "at most 8 bits and a zero; BF16 has not"),
        ({"element": formats.UE8M0}, "UE8M0 has not"),
    ],
)
def test_a_record_whose_parts_do_not_fit_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(NVFP4, name="odd", **change)


def test_code_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"E2M1 has codes 0\.\.15, got 16"):
        formats.E2M1.decode(16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tile": (1, 32)}, "nvfp4 is defined for tiles 1x16 or 16x16, not 1x32"),
        ({"tile": (1, 16), "rounding": "nearest"}, "'sr' .stochastic., not 'nearest'"),
        ({"tile": (1, 16), "scale_order": "TE"}, "scale_order is 'te' or 'paper', not 'TE'"),
    ],
)
def test_spec_refuses_what_does_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        QuantSpec(NVFP4, **arguments)


def test_spec_takes_a_tile_from_yaml_as_list():
    assert QuantSpec(NVFP4, [1, 16]) == QuantSpec(NVFP4, (1, 16))


@pytest.mark.parametrize("name", ["nvfp4", "fp3", None])
def test_a_name_in_place_of_a_record_is_told_how_to_get_one(name: object) -> None:
    with pytest.raises(
        ValueError, match=r"record such as NVFP4, not .*`block_format\(name\)` gives that of nvfp4, mxfp4"
    ):
        QuantSpec(name, (1, 16))


def test_formats_need_no_torch():
    code = "import sys, repro.numerics, repro.numerics.formats; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0, "importing formats pulled in torch"


def test_functions_are_not_shadowed_by_their_modules():
    code = (
        "import repro.numerics.quantize, repro.numerics.random_bits, repro.numerics as n;"
        "from repro.numerics import quantize, random_bits;"
        "from repro.numerics.quantize import Quantized;"
        "assert callable(quantize) and callable(random_bits) and callable(n.quantize), n.quantize"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_formats_whose_values_are_exact_in_bf16():
    """Every element times every scale, as far as BF16 reaches; FP32 scales have more bits than BF16 by themselves."""
    found = set()
    for name, form in BLOCK_FORMATS.items():
        if form.scale is formats.FP32:
            continue
        element, scale = (
            torch.tensor(part.magnitudes, dtype=torch.float64) for part in (form.element, form.scale)
        )
        values = torch.outer(element, scale).flatten()
        values = values[values <= formats.BF16.max]
        if torch.equal(values.to(torch.bfloat16).double(), values):
            found.add(name)
    assert (
        found == {name for name, form in BLOCK_FORMATS.items() if form.is_exact_in_bf16} == {"nvfp4", "mxfp4"}
    )


def test_every_public_name_loads():
    import repro.numerics

    for name in repro.numerics.__all__:
        assert getattr(repro.numerics, name) is not None
        assert name in dir(repro.numerics)
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        repro.numerics.quantise  # noqa: B018 - the access itself is tested
