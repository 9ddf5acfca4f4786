"""The Triton kernels on the CPU, through Triton's interpreter: the logic that a GPU then runs."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("cases", "least"), [("gpu_cases.py", 175), ("packing_cases.py", 90)])
def test_kernels_give_the_reference_bits_in_the_interpreter(cases, least):
    """In a process of its own: the interpreter is chosen when triton is imported."""
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(cases))],
        env=environment, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    passed = re.findall(r"^passed (.*)", done.stdout, re.MULTILINE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(passed) >= least, done.stdout
