"""Transformer Engine's modules under our quantisers; without a GPU around plain products (without_gpu.py)."""

import importlib.util
import json
from pathlib import Path

import pytest
from launched import finish, start

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformer_engine") is None, reason="needs transformer-engine"
)
RUNS = ["12b_nvfp4", "8b_mxfp4", "12b_rht4", "12b_rht128", "12b_signs_per_transform", "12b_sr_dgrad_only",
        "12b_switch_forward_82", "1p2b_rht_fprop", "1p2b_weights_same", "1p2b_activations_different"]  # fmt: skip


@pytest.fixture(scope="module")
def differences():
    code, said = finish(start(Path(__file__).parent / "te_process.py", *RUNS))
    assert code == 0, said[-6000:]
    return json.loads(said.splitlines()[-1])


@pytest.mark.parametrize("run", RUNS)
def test_a_module_of_transformer_engine_computes_what_the_portable_layer_does(differences, run):
    """To the bit: same operands, same product."""
    assert differences[run] == []
