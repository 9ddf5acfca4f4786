"""`repro quantize`: the arrays of the golden vectors, the printed error, and one clear message for bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import typer
from numerics_helpers import GOLDEN_NVFP4, assert_same, load_golden
from typer.testing import CliRunner

from repro.numerics.command import quantize_command

app = typer.Typer()
app.command("quantize")(quantize_command)


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def save(tmp_path):
    def save_array(array, name="in.npy"):
        np.save(tmp_path / name, array)
        return tmp_path / name

    return save_array


def refused(tmp_path, *arguments):
    """The one line a refusal prints; nothing may be left behind."""
    result = run(*arguments, "--out", tmp_path / "out.npz")
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    assert [p.name for p in tmp_path.iterdir() if "out" in p.name] == []
    return result.stderr


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


def test_overflow_of_the_transform_is_named(tmp_path, save):
    message = refused(tmp_path, save(np.full((1, 16), 3e38, np.float32)), "--hadamard", 16, "--signs", "none")
    # The sum of the group is beyond FP32, and so are the two halves whose difference is the other value.
    assert "after the Hadamard transform in BF16: 2 of 16" in message


@pytest.mark.parametrize(
    ("array", "arguments", "message"),
    [
        (np.zeros((0, 16), np.float32), [], "nothing to quantise in an array of shape (0, 16)"),
        (np.float32(1.0), [], "nothing to quantise in an array of shape ()"),
        (
            np.zeros((2, 16), np.int32),
            [],
            "float32 or float16 expected (or uint16 with --bf16), this is int32",
        ),
        (np.zeros((2, 16), np.float64), [], "this is float64; in Python: numpy.save("),
        (np.zeros((2, 16), complex), [], "this is complex128\n"),
        (np.zeros((2, 16), "V2"), [], "of BF16 numbers save x.view('uint16') and add --bf16"),
        (np.zeros((2, 16), bool), [], "this is bool"),
        (np.zeros((2, 16), np.uint16), [], "uint16 is an integer type; if it holds BF16 bits, add --bf16"),
        (np.zeros((2, 16), np.float32), ["--bf16"], "--bf16 reads BF16 bits from uint16, this is float32"),
        (np.zeros((2, 15), np.float32), [], "15 values along the quantised dimension"),
        (np.zeros((15, 16), np.float32), ["--transpose"], "15 values along the quantised dimension"),
        (
            np.zeros((2, 48), np.float32),
            ["--hadamard", 12],
            "12 is no power of two between 2 and 128; nearest is 16",
        ),
        (np.zeros((2, 48), np.float32), ["--hadamard", -2], "Hadamard size -2 is no power of two"),
        (
            np.zeros((2, 24), np.float32),
            ["--hadamard", 16],
            "is 24 long, no multiple of the Hadamard size 16",
        ),
        (
            np.zeros((2, 16), np.float32),
            ["--hadamard", 16, "--signs", "random"],
            "'fixed' or 'none', not 'random'",
        ),
        (
            np.zeros((2, 16), np.float32),
            ["--format", "nvpf4"],
            "unknown format 'nvpf4'; did you mean 'nvfp4'?",
        ),
        (
            np.zeros((2, 16), np.float32),
            ["--tile", "1x32"],
            "nvfp4 is defined for tiles 1x16 or 16x16, not 1x32",
        ),
        (
            np.zeros((2, 16), np.float32),
            ["--tile", "16"],
            "'16' is not ROWSxCOLUMNS; nvfp4 has 1x16 or 16x16",
        ),
        (
            np.zeros((2, 16), np.float32),
            ["--rounding", "up"],
            "'rne' (to nearest) or 'sr' (stochastic), not 'up'",
        ),
        (np.zeros((2, 16), np.float32), ["--rounding", "sr"], "--rounding sr needs --seed"),
        (np.zeros((2, 16), np.float32), ["--seed", 1], "--rounding rne takes no --seed"),
        (np.zeros((2, 16), np.float32), ["--scale-order", "x"], "scale_order is 'te' or 'paper', not 'x'"),
        (np.array([{}], dtype=object), [], "not a .npy file of numbers"),
    ],
)
def test_bad_input_is_one_message(tmp_path, save, array, arguments, message):
    assert message in refused(tmp_path, save(array), *arguments)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, bool])
def test_what_the_refusal_says_to_type_makes_the_file_right(tmp_path, save, dtype):
    source = save(np.ones((2, 16), dtype))
    exec("import numpy; " + refused(tmp_path, source).partition("in Python: ")[2])
    assert run(tmp_path / "in_float32.npy", "--out", tmp_path / "out.npz").exit_code == 0


def test_blocks_of_a_rounded_up_scale_have_no_value_that_must_be_the_largest(tmp_path, save):
    x = np.zeros((1, 32), np.float32)
    x[0, :2] = 4.0, 3.0  # under the scale 1, the largest code being 6
    result = run(save(x), "--format", "mxfp4", "--out", tmp_path / "out.npz")
    assert "largest code    0.000 %  (of blocks' maxima only some" in result.stdout


def test_files_that_are_no_arrays(tmp_path, save):
    assert "missing.npy: cannot be read (No such file or directory)" in refused(
        tmp_path, tmp_path / "missing.npy"
    )
    assert "cannot be read (Is a directory)" in refused(tmp_path, tmp_path)
    whole = save(np.ones((64, 64), np.float32)).read_bytes()
    for name, content in (
        ("empty.npy", b""),
        ("text.npy", b"1 2 3\n"),
        ("cut.npy", whole[:-5]),
        ("head.npy", whole[:9]),
    ):
        (tmp_path / name).write_bytes(content)
        assert f"{name}: " in refused(tmp_path, tmp_path / name)
    np.savez(tmp_path / "many.npz", a=np.ones(3))
    assert "an archive of several arrays" in refused(tmp_path, tmp_path / "many.npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "many.npz").read_bytes()[:60])
    assert "cut.npz: " in refused(tmp_path, tmp_path / "cut.npz")


def test_output_folder_that_is_missing(tmp_path, save):
    result = run(save(np.ones((2, 16), np.float32)), "--out", tmp_path / "no" / "out.npz")
    assert result.exit_code == 2
    assert result.stderr == f"error: {tmp_path}/no/out.npz: cannot be written (No such file or directory)\n"


def test_full_disk_leaves_the_old_file_and_no_other(tmp_path, save, monkeypatch):
    out = tmp_path / "out.npz"
    out.write_bytes(b"old")

    def no_space(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", no_space)
    result = run(save(np.ones((2, 16), np.float32)), "--out", out)
    assert result.exit_code == 2
    assert "cannot be written (No space left on device)" in result.stderr
    assert out.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.npy", "out.npz"]


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


@pytest.mark.parametrize(
    ("device", "message"),
    [("tpu", "--device 'tpu' is no PyTorch device; cpu or cuda"), ("meta", "--device meta: not on this")],
)
def test_a_device_that_is_not_there_is_refused(tmp_path, save, device, message):
    source = save(np.ones((2, 16), dtype=np.float32))
    assert message in refused(tmp_path, source, "--device", device)


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
