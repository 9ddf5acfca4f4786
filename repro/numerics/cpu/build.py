"""Compile the fused CPU quantiser with the system's compiler, once per user and machine kind, and load it.

The library lies in `$XDG_CACHE_HOME/nvfp4-repro` (default `~/.cache/nvfp4-repro`) under a name that hashes all
it depends on: sources, flags, compiler, processor. It is written beside and renamed, so processes that
start together may all compile but never see half a file. Compiling takes about 2 s; loading 1 ms.

Why not torch.compile: a warm start of it costs seconds in every process and a guard check in every call.

Does not: retry. A machine without a working compiler runs the PyTorch reference (`KernelUnavailable` says why).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE_FOLDER = Path(__file__).parent
MAIN_SOURCE = "quantize.cpp"

#: FP32 must stay as written: no contraction to FMA, no reassociation, no flushing of subnormals. The two
#: -fno-* at the end only drop exception flags and errno, which nobody reads, and let loops vectorise.
FLAGS = [
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-O3",
    "-ffp-contract=off",
    "-fno-fast-math",
    "-fno-trapping-math",
    "-fno-math-errno",
]
#: Tried in this order: a compiler may lack OpenMP (then one thread) or the processor's name.
OPTIONAL_FLAGS = (["-march=native", "-fopenmp"], ["-march=native"], ["-fopenmp"], [])
_COMPILE_TIMEOUT_S = 300


class KernelUnavailable(RuntimeError):  # noqa: N818 - a state of the machine, not a mistake
    """The fused kernel cannot be used on this machine; the message says why."""


def find_compiler() -> list[str]:
    """The C++ compiler as a command: $CXX (which may hold arguments), else c++, g++ or clang++ on PATH.

    Raises KernelUnavailable naming what was looked for. A $CXX that does not exist is not replaced by another.
    """
    asked = os.environ.get("CXX", "").strip()
    if asked:
        command = shlex.split(asked)
        if shutil.which(command[0]) is None:
            raise KernelUnavailable(f"the C++ compiler of $CXX, {asked!r}, was not found")
        return command
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise KernelUnavailable("no C++ compiler (c++, g++, clang++) was found on PATH")


def cache_folder() -> Path:
    """Where compiled libraries are kept; not created here. Raises KernelUnavailable for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME", "").strip()
    try:
        return (Path(base) if base else Path.home() / ".cache") / "nvfp4-repro"
    except RuntimeError as error:
        raise KernelUnavailable(f"no cache folder for the fused CPU kernel: {error}") from error


def load_library() -> ctypes.CDLL:
    """The compiled library, from the cache if it is there. Raises KernelUnavailable, with the reason."""
    compiler = find_compiler()
    try:
        path = cache_folder() / f"quantize-{_key(compiler)}.so"
        if path.exists():
            try:
                return load_compiled(path)
            except OSError:  # damaged, e.g. by a disk that was full: made anew
                pass
        path.parent.mkdir(parents=True, exist_ok=True)
        _compile_any(compiler, path)
        return load_compiled(path)
    except OSError as error:  # no space, no permission, a folder that forbids execution
        raise KernelUnavailable(f"building the fused CPU kernel failed: {error}") from error


def load_compiled(path: Path) -> ctypes.CDLL:
    """Load a library that `compile_library` wrote and declare its one function."""
    library = ctypes.CDLL(str(path))
    library.repro_quantize.argtypes = [ctypes.c_char_p]
    library.repro_quantize.restype = ctypes.c_int32
    return library


def compile_library(compiler: list[str], flags: list[str], path: Path) -> None:
    """Compile to `path` by way of a temporary file beside it. Raises KernelUnavailable with the first error."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    os.close(handle)
    try:
        command = [*compiler, *FLAGS, *flags, str(SOURCE_FOLDER / MAIN_SOURCE), "-o", temporary]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise KernelUnavailable(f"{shlex.join(compiler)} took over {_COMPILE_TIMEOUT_S} s") from None
        if result.returncode != 0:
            errors = [line for line in result.stderr.splitlines() if "error" in line]
            first = (errors or result.stderr.splitlines() or ["no message"])[0]
            raise KernelUnavailable(
                f"{shlex.join(compiler)} failed (exit {result.returncode}): {first.strip()}"
            )
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _compile_any(compiler: list[str], path: Path) -> None:
    reason = None
    for flags in OPTIONAL_FLAGS:
        try:
            return compile_library(compiler, flags, path)
        except KernelUnavailable as error:
            reason = reason or error  # that of the full set of flags tells most
    raise reason


def _key(compiler: list[str]) -> str:
    """Hash of everything the compiled library depends on."""
    digest = hashlib.sha256()
    for source in sorted([*SOURCE_FOLDER.glob("*.cpp"), *SOURCE_FOLDER.glob("*.hpp")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    for part in (repr((FLAGS, OPTIONAL_FLAGS, compiler)), _compiler_identity(compiler), _processor()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def _compiler_identity(compiler: list[str]) -> str:
    """The compiler's file, its size and time: as good as its version, and 10 ms faster than asking it."""
    path = Path(shutil.which(compiler[0]) or compiler[0]).resolve()
    stat = path.stat()
    return f"{path} {stat.st_size} {stat.st_mtime_ns}"


def _processor() -> str:
    """Model and features of the processor: -march=native code must not travel to another one."""
    lines = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name = line.split(":")[0].strip()
            if name in ("model name", "flags", "Features", "CPU part"):
                lines.setdefault(name, line)
    except OSError:  # no Linux
        pass
    return "\n".join([platform.machine(), platform.processor(), *lines.values()])
