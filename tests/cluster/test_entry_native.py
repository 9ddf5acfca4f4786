"""The native path up to step 1: megatron-core's model with Transformer Engine's own quantisers, read layer by layer.

Needs what test_entry_point.py needs. Without a GPU the model is built as if the CPU were a Blackwell card, so what
the walk reads is what Transformer Engine would run there; nothing is multiplied.
"""

import importlib.util
import json
import sys

import pytest
from entry_point import MODEL, PROCESS, layout, segment_of
from launched import ON_GPU, finish, start

pytestmark = [
    pytest.mark.skipif(
        sys.version_info < (3, 12)
        or any(importlib.util.find_spec(name) is None for name in ("transformer_engine", "mamba_ssm")),
        reason="needs megatron-core 0.19, transformer-engine and mamba-ssm",
    ),
    pytest.mark.skipif(ON_GPU and layout() != "b200x8", reason="needs Blackwell, or no GPU"),
]
RECIPES = ["nvfp4", "nvfp4_plain", "nvfp4_forward", "fp8_block"]


def walk(tmp_path, monkeypatch, recipe, late=""):
    """(exit code, what was said, the record)."""
    monkeypatch.setenv("CPU_STANDS_FOR_CAPABILITY", "10.0")
    segment = segment_of(tmp_path / "run", recipe=recipe)
    out = tmp_path / "record.json"
    code, said = finish(start(PROCESS, "walk", segment.path, tmp_path / "state", out, "b200x8", late))
    return code, said, json.loads(out.read_text()) if out.exists() else None


@pytest.mark.parametrize("recipe", RECIPES)
def test_native_quantisers_are_read_as_frozen(tmp_path, monkeypatch, recipe):
    code, said, record = walk(tmp_path, monkeypatch, recipe)
    assert code == 0, said[-6000:]
    assert len(record) == 12 * len(MODEL["pattern"])
    assert {line["format"] for line in record} == {
        "bf16",
        recipe.partition("_")[0] if "nv" in recipe else recipe,
    }


@pytest.mark.parametrize(
    ("recipe", "late", "found"),
    [
        ("nvfp4_plain", "NVTE_NVFP4_DISABLE_RHT", "wgrad.x with hadamard 16"),
        ("nvfp4_plain", "NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING", "dgrad.g with rounding sr"),
        ("nvfp4_plain", "NVTE_NVFP4_DISABLE_2D_QUANTIZATION", "fprop.w with blocks 2d"),
        ("nvfp4_forward", "NVTE_BACKWARD_OVERRIDE", "wgrad.x with format nvfp4"),
    ],
)
def test_a_switch_that_came_too_late_is_an_error_before_step_1(tmp_path, monkeypatch, recipe, late, found):
    """Transformer Engine reads it when it is imported: the run would train another recipe without a word."""
    code, said, _ = walk(tmp_path, monkeypatch, recipe, late)
    assert code == 1, said[-6000:]
    assert found in said, said[-6000:]
