"""Transformer Engine's own recipes under the environment of a run: needs it installed, on any machine."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from repro.cluster.arguments import environment
from repro.cluster.paths import decide

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformer_engine") is None, reason="needs transformer-engine"
)
TOLD = """
import json, torch
from transformer_engine.common.recipe import Float8BlockScaling, NVFP4BlockScaling
four, eight = NVFP4BlockScaling(), Float8BlockScaling()
print(json.dumps([four.disable_rht, four.disable_stochastic_rounding, four.disable_2d_quantization,
                  four.backward_override, four.row_scaled_activation, four.nvfp4_4over6, four.fp8_dpa,
                  eight.use_f32_scales]))
"""


@pytest.mark.parametrize(
    ("run", "switches"),
    [
        ("12b_nvfp4", [False, False, False, None]),
        ("12b_without_rht", [True, False, False, None]),
        ("12b_without_sr", [False, True, False, None]),
        ("12b_without_2d", [False, False, True, None]),
        ("1p2b_last4", [True, True, True, None]),
        ("12b_switch_backward_82", [True, True, True, "high_precision"]),
    ],
)
def test_a_new_process_reads_the_switches_of_its_run(segment, layouts, run, switches):
    assert told(layouts["gb200"], decide(segment(run).recipe)) == [*switches, False, "none", False, False]


@pytest.mark.parametrize(("layout", "fp32_scales"), [("h200x8", True), ("b200x8", False)])
def test_fp8_scales_are_those_of_the_card(segment, layouts, layout, fp32_scales):
    assert told(layouts[layout], decide(segment("12b_fp8").recipe))[-1] is fp32_scales


def told(layout, decision):
    """What the recipes' defaults are in a process that inherits every switch the wrong way round."""
    inherited = {**os.environ, "NVTE_BACKWARD_OVERRIDE": "dequantized", "NVTE_NVFP4_DISABLE_RHT": "1"}
    changes = environment(layout, decision)
    kept = {name: value for name, value in inherited.items() if name not in changes}
    kept |= {name: value for name, value in changes.items() if value is not None}
    done = subprocess.run([sys.executable, "-c", TOLD], env=kept, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])
