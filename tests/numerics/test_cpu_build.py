"""Building the fused CPU kernel: cached, safe among processes, and loud but harmless where it cannot be built."""

from __future__ import annotations

import logging
import os
import platform
import shlex
import stat
import subprocess
import sys

import pytest
import torch
from numerics_helpers import ALL_SPECS, assert_same, make_tensor, spec_id

from repro.numerics import QuantSpec, make_operand, make_operand_reference, sign_vector
from repro.numerics.cpu import binding, build
from repro.numerics.formats import NVFP4

SPEC = QuantSpec(NVFP4, (1, 16))


def has_compiler() -> bool:
    try:
        build.find_compiler()
    except build.KernelUnavailable:
        return False
    return True


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """An empty cache folder, and a process that has not yet looked for the kernel."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kernel = binding.kernel
    kernel.cache_clear()
    yield tmp_path / "cache" / "nvfp4-repro"
    kernel.cache_clear()


@pytest.fixture
def fake_compiler(tmp_path, monkeypatch):
    """Makes a shell script the compiler; `$@` are its arguments and `real` is the real one (-O0: quickly)."""

    def make(body: str) -> None:
        path = tmp_path / "fake-c++"
        path.write_text(f"#!/bin/sh\nreal={shlex.quote(shlex.join(real))}\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("CXX", str(path))

    real = build.find_compiler() if has_compiler() else ["c++"]
    return make


def operands_and_log(caplog):
    x = make_tensor(1, (48, 64), "bf16")
    with caplog.at_level(logging.WARNING):
        results = [make_operand(x, SPEC, along=along) for along in (0, 1, 0)]
    for along, ours in zip((0, 1, 0), results, strict=True):
        assert_same("values", ours.values, make_operand_reference(x, SPEC, along=along).values)
    return [record.getMessage() for record in caplog.records]


def test_trial_19_without_a_compiler_one_line_says_what_runs_and_why(monkeypatch, caplog):
    monkeypatch.setenv("CXX", "/no/such/compiler -O2")
    (message,) = operands_and_log(caplog)
    assert "by the PyTorch reference" in message
    assert "the C++ compiler of $CXX, '/no/such/compiler -O2', was not found" in message


def test_no_compiler_on_path(monkeypatch, caplog, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (message,) = operands_and_log(caplog)
    assert "no C++ compiler (c++, g++, clang++) was found on PATH" in message


def test_failing_compiler_is_quoted(fake_compiler, caplog):
    fake_compiler('echo "quantize.cpp:1: error: what is this" >&2; exit 3')
    (message,) = operands_and_log(caplog)
    assert "failed (exit 3): quantize.cpp:1: error: what is this" in message


def test_cache_that_cannot_be_written(monkeypatch, caplog, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (message,) = operands_and_log(caplog)
    assert "by the PyTorch reference" in message
    assert "Not a directory" in message or "no C++ compiler" in message


@needs_compiler
def test_compiled_once_and_a_damaged_file_is_replaced(fake_compiler, own_cache, tmp_path):
    count = tmp_path / "count"
    fake_compiler(f'echo x >> {shlex.quote(str(count))}; exec $real "$@" -O0')
    own_cache.mkdir(parents=True)
    library = own_cache / f"quantize-{build._key(build.find_compiler())}.so"
    library.write_bytes(b"half a library")
    for _ in range(3):
        assert build.load_library().repro_quantize
    assert count.read_text() == "x\n", "compiled again although the library was there"
    assert list(own_cache.iterdir()) == [library]


@needs_compiler
def test_compiler_without_openmp_still_gives_the_kernel(fake_compiler, caplog):
    fake_compiler(
        'for a in "$@"; do [ "$a" = -fopenmp ] && echo "error: no OpenMP" >&2 && exit 1; done; exec $real "$@"'
    )
    assert operands_and_log(caplog) == []
    assert binding.kernel() is not None


@needs_compiler
def test_processes_that_start_together_do_not_disturb_each_other(fake_compiler, own_cache):
    fake_compiler('exec $real "$@" -O0')
    code = (
        "import torch; from repro.numerics import QuantSpec; from repro.numerics.formats import NVFP4\n"
        "from repro.numerics.cpu import binding, make_operand_cpu\n"
        "print(float(make_operand_cpu(torch.ones(16, 16), QuantSpec(NVFP4, (1, 16)), along=1).values.sum()),"
        " binding.kernel() is not None)"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(3)
    ]
    for process in processes:
        assert process.communicate()[0] == f"{256 * 2688.0} True\n"
    assert [path.suffix for path in own_cache.iterdir()] == [".so"]


@needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86 instruction sets")
@pytest.mark.parametrize("instructions", ["x86-64", "x86-64-v3"])
def test_vector_width_does_not_change_a_bit(instructions, tmp_path, monkeypatch):
    """4 and 8 lanes instead of this machine's: the same source must give the reference's bits."""
    if instructions == "x86-64-v3" and "avx2" not in build._processor():
        pytest.skip("this processor lacks AVX2")
    path = tmp_path / "library.so"
    build.compile_library(build.find_compiler(), [f"-march={instructions}"], path)
    library = build.load_compiled(path)
    monkeypatch.setattr(binding, "kernel", lambda: library)
    for spec in ALL_SPECS:
        for along, size in ((0, 0), (1, 0), (0, 2), (1, 2), (1, 4), (1, 8), (0, 32), (1, 128)):
            x = make_tensor(2, (128, 256) if size else (37, 75), "mixed_blocks")
            kwargs = {
                "along": along,
                "hadamard": size,
                "signs": sign_vector(size, kind="fixed") if size else None,
                "seed": 3 if spec.rounding == "sr" else None,
            }
            ours, expected = (
                binding.make_operand_cpu(x, spec, **kwargs),
                make_operand_reference(x, spec, **kwargs),
            )
            what = f"{spec_id(spec)} along {along} hadamard {size}"
            assert_same(what, ours.values, expected.values)
            assert torch.equal(ours.amax, expected.amax), what
