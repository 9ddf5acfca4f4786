"""`repro quantize`: the arrays of the golden vectors, and the printed error."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from command_calls import refused, run
from numerics_helpers import GOLDEN_NVFP4, assert_same, load_golden


@pytest.mark.parametrize("side", ["row", "col"])
@pytest.mark.parametrize("name", [n for n in GOLDEN_NVFP4 if "256x256" not in n and "128x512" not in n])
def test_writes_the_golden_arrays(tmp_path, save, name, side):
    case = load_golden(name)
    is_bf16 = "x_bf16_bits" in case.arrays
    source = save(case.arrays["x_bf16_bits" if is_bf16 else "x_fp32"])
    arguments = ["--format", "nvfp4", "--tile", "x".join(str(n) for n in case.config["tile"])]
    arguments += ["--bf16"] if is_bf16 else []
    arguments += ["--transpose"] if side == "col" else []
    if side == "col" and case.config["rht_on_columnwise"]:
        arguments += ["--hadamard", 16, "--signs", "fixed" if case.config["random_sign"] else "none"]
    result = run(source, *arguments, "--out", tmp_path / "out.npz")
    assert result.exit_code == 0, result.output
    with np.load(tmp_path / "out.npz") as written:
        assert sorted(written.files) == ["amax", "codes", "scales"]
        for ours, theirs in (("codes", "codes"), ("scales", "scale_e4m3"), ("amax", "amax")):
            assert written[ours].dtype == case.arrays[f"{side}_{theirs}"].dtype
            assert_same(ours, written[ours], case.arrays[f"{side}_{theirs}"])


def test_paper_order_writes_the_older_arrays(tmp_path, save):
    case = load_golden("21_normal_bf16_256x256_1x16_rht")
    source = save(case.arrays["x_bf16_bits"])
    result = run(source, "--bf16", "--scale-order", "paper", "--out", tmp_path / "out.npz")
    assert result.exit_code == 0, result.output
    with np.load(tmp_path / "out.npz") as written:
        assert_same("codes", written["codes"], case.arrays["row_codes_le213"])
        assert_same("scales", written["scales"], case.arrays["row_scale_e4m3_le213"])


def test_prints_the_error_it_made(tmp_path, save):
    x = np.zeros((1, 16), np.float32)
    x[0, :4] = 6.0, 0.25, -6.0, 3.0  # 0.25 is the only value that is lost
    result = run(save(x), "--out", tmp_path / "out.npz")
    assert f"relative error  {0.25 / math.sqrt(36 + 0.0625 + 36 + 9):.6f}" in result.stdout
    assert "zeros           81.250 %" in result.stdout
    assert (
        "largest code    12.500 %  (where each block's maximum goes: 6.250 % of the values)" in result.stdout
    )
    assert "4.500 bits a value" not in result.stdout  # the tensor's amax counts too: 16 values only
    assert str(tmp_path / "out.npz") in result.stdout


def test_all_zero_tensor_has_no_error(tmp_path, save):
    result = run(save(np.zeros((4, 16), np.float32)), "--out", tmp_path / "out.npz")
    assert result.exit_code == 0
    assert "relative error  0.000000" in result.stdout
    assert "zeros           100.000 %" in result.stdout


@pytest.mark.parametrize("dtype", [np.float16, ">f4", "<f4"])
def test_other_floats_are_their_values(tmp_path, save, dtype):
    x = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float16)
    for name, array in (("a.npy", x.astype(np.float32)), ("b.npy", x.astype(dtype))):
        assert run(save(array, name), "--out", tmp_path / f"{name}.npz").exit_code == 0
    with np.load(tmp_path / "a.npy.npz") as a, np.load(tmp_path / "b.npy.npz") as b:
        for key in a.files:
            assert_same(key, b[key], a[key])


@pytest.mark.parametrize(
    ("name", "tile"), [("mxfp4", "32x32"), ("mxfp8", "1x32"), ("fp8_block", "128x128"), ("nvfp4", "1x16")]
)
def test_every_format_stochastic_and_padded(tmp_path, save, name, tile):
    """Sizes that are no multiple of the tile are padded, as in the library; the same seed gives the same file."""
    source = save(np.random.default_rng(1).standard_normal((5, 38)).astype(np.float32))
    for out in ("a.npz", "b.npz"):
        arguments = ["--format", name, "--tile", tile, "--rounding", "sr", "--seed", 3]
        result = run(source, *arguments, "--out", tmp_path / out)
        assert result.exit_code == 0, result.output
    with np.load(tmp_path / "a.npz") as a, np.load(tmp_path / "b.npz") as b:
        assert a["codes"].shape == (5, 38)
        assert a["scales"].dtype == (np.float32 if name == "fp8_block" else np.uint8)
        assert np.array_equal(a["codes"], b["codes"])


@pytest.mark.parametrize(("bad", "shown"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_nonfinite_values_are_counted_and_the_first_is_named(tmp_path, save, bad, shown):
    x = np.ones((4, 32), np.float32)
    x[2, 5] = x[3, 0] = bad
    message = refused(tmp_path, save(x))
    assert f"2 of 128 values are NaN or infinite, the first at [2, 5]: {shown}" in message
    assert "in.npy" in message


def test_blocks_of_a_rounded_up_scale_have_no_value_that_must_be_the_largest(tmp_path, save):
    x = np.zeros((1, 32), np.float32)
    x[0, :2] = 4.0, 3.0  # under the scale 1, the largest code being 6
    result = run(save(x), "--format", "mxfp4", "--out", tmp_path / "out.npz")
    assert "largest code    0.000 %  (of blocks' maxima only some" in result.stdout


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8"])
def test_packed_codes_are_the_codes_as_they_are_stored(tmp_path, save, name):
    source = save(np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32))
    run(source, "--format", name, "--out", tmp_path / "codes.npz")
    result = run(source, "--format", name, "--packed", "--out", tmp_path / "packed.npz")
    assert result.exit_code == 0, result.output
    with np.load(tmp_path / "codes.npz") as one, np.load(tmp_path / "packed.npz") as other:
        codes = one["codes"]
        packed = codes[:, 0::2] | codes[:, 1::2] << 4 if name.endswith("4") else codes
        assert_same("codes", other["codes"], packed)
        assert_same("scales", other["scales"], one["scales"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "options", [(), ("--transpose", "--hadamard", 16), ("--rounding", "sr", "--seed", 3)]
)
def test_a_gpu_writes_the_same_arrays(tmp_path, save, options):
    source = save(np.random.default_rng(2).standard_normal((48, 80)).astype(np.float32))
    for device in ("cpu", "cuda"):
        run(source, *options, "--device", device, "--out", tmp_path / f"{device}.npz")
    with np.load(tmp_path / "cpu.npz") as one, np.load(tmp_path / "cuda.npz") as other:
        for part in one.files:
            assert_same(part, other[part], one[part])
