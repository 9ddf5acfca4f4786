"""`repro quantize`: one clear message for bad input, for bad words and for a disk that does not take the result."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from command_calls import refused, run


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


def refused_out(source, out):
    """The one line about --out; the input keeps its bytes."""
    before = source.read_bytes()
    result = run(source, "--out", out)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.count("\n") == 1
    assert source.read_bytes() == before
    return result.stderr


def test_the_input_is_not_written_over(tmp_path, save):
    source = save(np.ones((2, 16), np.float32))
    for out in (source, tmp_path / ".." / tmp_path.name / source.name):
        assert f"--out {out}: is the input; name another file" in refused_out(source, out)
    for link in (tmp_path / "symbolic.npz", tmp_path / "hard.npz"):
        link.symlink_to(source) if link.stem == "symbolic" else link.hardlink_to(source)
        assert f"--out {link}: is the input" in refused_out(source, link)
        assert link.samefile(source)


def test_the_result_is_a_file_with_the_name_of_an_archive(tmp_path, save, monkeypatch):
    source = save(np.ones((2, 16), np.float32))
    monkeypatch.chdir(tmp_path)
    assert refused_out(source, ".") == "error: --out .: a folder; name a file in it, e.g. in.npz\n"
    for name in ("out", "out.npy"):
        message = f"error: --out {name}: the name must end in .npz, e.g. out.npz\n"
        assert refused_out(source, name) == message
    assert [path.name for path in tmp_path.iterdir()] == ["in.npy"]


def test_ctrl_c_ends_in_one_line_and_leaves_nothing(tmp_path, save, monkeypatch):
    def stopped(file, **arrays):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", stopped)
    result = run(save(np.ones((2, 16), np.float32)), "--out", tmp_path / "out.npz")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "repro quantize: stopped; nothing is kept of it\n"
    assert [path.name for path in tmp_path.iterdir()] == ["in.npy"]


@pytest.mark.parametrize("dtype", [np.float64, np.int64, bool])
def test_what_the_refusal_says_to_type_makes_the_file_right(tmp_path, save, dtype):
    source = save(np.ones((2, 16), dtype))
    exec("import numpy; " + refused(tmp_path, source).partition("in Python: ")[2])
    assert run(tmp_path / "in_float32.npy", "--out", tmp_path / "out.npz").exit_code == 0


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


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("tpu", "--device 'tpu' is no PyTorch device; cpu or cuda"),
        ("meta", "--device meta: not on this"),
        ("cuda:1", "--device cuda:1: not on this machine"),
    ],
)
def test_a_device_that_is_not_there_is_refused(tmp_path, save, monkeypatch, device, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    source = save(np.ones((2, 16), dtype=np.float32))
    assert message in refused(tmp_path, source, "--device", device)
