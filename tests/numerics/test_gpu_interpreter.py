"""The Triton kernels on the CPU, through Triton's interpreter: the logic that a GPU then runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from interpreter import needs_triton, printed

pytestmark = needs_triton


@pytest.mark.parametrize(("cases", "least"), [("gpu_cases.py", 175), ("packing_cases.py", 90)])
def test_kernels_give_the_reference_bits_in_the_interpreter(cases, least):
    said = printed(Path(__file__).with_name(cases))
    assert len(re.findall(r"^passed (.*)", said, re.MULTILINE)) >= least, said
