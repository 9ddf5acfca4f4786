"""`pytest -m gpu` takes every test that a machine without a GPU skips."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent


def test_what_needs_a_gpu_carries_the_marker():
    """File by file: what skips without CUDA, or with too few devices, names the marker."""
    needs = re.compile(r"not torch\.cuda\.is_available\(\)|skipif\(torch\.cuda\.device_count\(\) <")
    files = [path for path in TESTS.rglob("test_*.py") if needs.search(path.read_text(encoding="utf-8"))]
    unmarked = [path.name for path in files if "mark.gpu" not in path.read_text(encoding="utf-8")]
    assert len(files) > 10
    assert not unmarked
