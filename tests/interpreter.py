"""Python under Triton's interpreter, in a process of its own: it is chosen when triton is imported."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


def printed(*words: str | Path) -> str:
    """What `python WORDS` prints, a script or -c and code; AssertionError with its words where it fails."""
    paths = os.pathsep.join([str(ROOT), *sys.path])
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
