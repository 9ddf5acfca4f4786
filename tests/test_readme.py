"""What the README shows can be done, and what it says was measured."""

from __future__ import annotations

from pathlib import Path

import torch

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Text from a heading to the next one."""
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_lines_of_the_numerics_run():
    code = [line[4:] for line in section("The numerics").splitlines() if line.startswith("    ")]
    names = {"x": torch.randn(32, 64)}
    exec("\n".join(code), names)
    assert names["quantized"].dequantize().shape == (32, 64)
    assert names["rows"].codes.shape == (32, 32)
    assert names["columns"].codes.shape == (64, 16)
