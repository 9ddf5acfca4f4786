"""What a result was made with: commit, versions, device, threads. Written into done.json, read by every figure."""

from __future__ import annotations

import datetime
import os
import platform
import resource
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

#: Files that git does not know count here as changes: an experiment or a figure of one's own.
_CONTENT = ("configs", "repro", "paper_figures", "Snakefile")
_LIBRARIES = ("torch", "numpy", "safetensors", "triton", "mamba-ssm")


@cache
def git_commit() -> str:
    """Commit of this checkout, "+changes" when tracked files differ or further ones lie among the content.

    Outside a git checkout what REPRO_COMMIT says (a copy that was sent to a bare machine), else "unknown".
    """
    root = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        changes = git("status", "--porcelain", "--untracked-files=no") or git(
            "status", "--porcelain", "--untracked-files=normal", "--", *_CONTENT
        )
        return commit + ("+changes" if changes else "")
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("REPRO_COMMIT", "unknown")


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that touch the numbers; absent ones are left out.

    One that was copied to a machine without its metadata says its version itself, once it is imported.
    """
    found = {"python": sys.version.split()[0]}
    for library in _LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            module = sys.modules.get(library.replace("-", "_"))
            if version := getattr(module, "__version__", None):
                found[library] = version
    return found


def device_name(device: torch.device) -> str:
    """The device in words: the GPU's name, or the processor's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def peak_memory_bytes(device: torch.device) -> int:
    """The most that this process held. On a GPU: of its memory, with what graphs keep and what PyTorch holds ready
    (not the CUDA context); on a CPU: of all memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def today() -> str:
    """Date in UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def describe(device: torch.device) -> dict[str, Any]:
    """The provenance that does not depend on the run."""
    return {
        "git_commit": git_commit(),
        "versions": versions(),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "date": today(),
    }
