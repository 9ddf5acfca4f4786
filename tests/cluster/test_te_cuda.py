"""With Transformer Engine and a GPU: its modules under our quantisers, and the whole entry point on a small hybrid.

Skipped where either is missing. The entry point is started by torchrun in processes of its own, as a launcher does.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch
from small import STEP_TOKENS, freeze, portable

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("transformer_engine") is None,
    reason="needs a GPU and transformer-engine",
)
needs_megatron = pytest.mark.skipif(
    sys.version_info < (3, 12) or importlib.util.find_spec("mamba_ssm") is None,
    reason="needs megatron-core 0.19 and mamba-ssm",
)
LAYER = "model.layers.3.mixer.in_proj"
MODEL = {
    **portable.MODEL,
    "pattern": "M-M*-M-",
    "vocab_size": portable.VOCAB,
    "hidden_size": 256,
    "ffn_hidden_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "mamba_num_heads": 16,
    "mamba_head_dim": 32,
    "mamba_state_size": 64,
    "mamba_chunk_size": 128,
}


def emulated_step(recipe, x, w, gradients):
    """te.Linear under CustomRecipe: outputs and input gradients of each micro batch, the summed weight gradient."""
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import CustomRecipe

    from repro.cluster import quantizers
    from repro.cluster.emulation import Clock

    clock = Clock(1)
    clock.begin(7, training=True)
    quantizers.use(recipe, clock)
    layer = te.Linear(
        w.shape[1], w.shape[0], bias=False, params_dtype=torch.bfloat16, device="cuda", name=LAYER
    )
    with torch.no_grad():
        layer.weight.copy_(w)
    results = []
    for number, g in enumerate(gradients):
        given = x.clone().requires_grad_()
        with te.fp8_autocast(enabled=True, fp8_recipe=CustomRecipe(qfactory=quantizers.factory)):
            y = layer(given, is_first_microbatch=number == 0)
        y.backward(g)
        results.append((y.detach(), given.grad))
    return results, layer.weight.grad


def portable_step(recipe, x, w, gradients):
    from repro.recipes.context import RunContext
    from repro.recipes.linear import QuantizedLinear

    context = RunContext(1)
    context.step = 7
    weight, results, total = torch.nn.Parameter(w.float()), [], None
    layer = QuantizedLinear(weight, recipe, name=LAYER, block=3, context=context)
    for number, g in enumerate(gradients):
        context.microbatch = number
        given = x.clone().requires_grad_()
        y = layer(given)
        y.backward(g)
        results.append((y.detach(), given.grad))
        own = weight.grad.bfloat16()  # TE gives each micro batch's gradient in BF16
        total, weight.grad = own if total is None else total + own, None
    return results, total


@pytest.mark.parametrize(
    "run", ["12b_nvfp4", "8b_mxfp4", "12b_rht4", "12b_rht128", "12b_signs_per_transform", "12b_sr_dgrad_only",
            "12b_switch_forward_82", "1p2b_rht_fprop", "1p2b_weights_same", "1p2b_activations_different"]
)  # fmt: skip
def test_a_module_of_transformer_engine_computes_what_the_portable_layer_does(segment, run):
    """To the bit: same operands, same product. Two micro batches, so that gradients add up and none is lost."""
    generator = torch.Generator("cuda").manual_seed(0)
    x, w, *gradients = (
        torch.randn(*shape, generator=generator, device="cuda").bfloat16()
        for shape in ((256, 512), (384, 512), (256, 384), (256, 384))
    )
    recipe = segment(run).recipe
    ours, our_sum = emulated_step(recipe, x, w, gradients)
    theirs, their_sum = portable_step(recipe, x, w, gradients)
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        for name, left, right in zip(("y", "dx"), a, b, strict=True):
            assert torch.equal(left, right), f"{run}: {name} of micro batch {number}"
    assert torch.equal(our_sum, their_sum), run
    assert our_sum.abs().sum() > 0


def trained(folder, data_dir, *, recipe="nvfp4", options=("--emulate",), **changes):
    """A small hybrid through the entry point; returns (segment, what the process said)."""
    segment = freeze(folder, recipe=recipe, family="8b", model=MODEL, **changes)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    command += ["-m", "repro.cluster", str(segment.path), "--data", str(data_dir)]
    command += ["--state", str(folder.parent / "state"), "--layout", layout(), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ})
    return segment, done.returncode, done.stdout + done.stderr


def layout():
    return "h200x8" if torch.cuda.get_device_capability()[0] == 9 else "b200x8"


def records(segment, kind="train"):
    lines = (segment.path.parent / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == kind]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return portable.write_data(tmp_path_factory.mktemp("data"))


@needs_megatron
@pytest.mark.parametrize("recipe", ["bf16", "nvfp4"])
def test_a_small_hybrid_trains_through_the_entry_point(tmp_path, data_dir, recipe):
    segment, code, said = trained(tmp_path / "run", data_dir, recipe=recipe)
    assert code == 0, said[-3000:]
    losses = [line["loss"] for line in records(segment)]
    assert len(losses) == 20
    assert losses[-1] < losses[0], losses
    assert [line["step"] for line in records(segment, "validation")] == [5, 10, 15, 20]
    done = json.loads((segment.path.parent / "done.json").read_text())
    formats = {line["format"] for line in done["precision"]}
    assert formats == ({"bf16"} if recipe == "bf16" else {"bf16", "nvfp4"})
    assert len(done["precision"]) == 12 * len(MODEL["pattern"])


@needs_megatron
def test_a_fork_goes_on_in_another_precision(tmp_path, data_dir):
    parent, code, said = trained(tmp_path / "parent", data_dir, end=8)
    assert code == 0, said[-3000:]
    link = {"run": "parent", "segment": 0, "run_hash": parent.run_hash, "tokens": 8 * STEP_TOKENS}
    child, code, said = trained(tmp_path / "child", data_dir, recipe="bf16", start=8, parent=link)
    assert code == 0, said[-3000:]
    assert [line["step"] for line in records(child)] == list(range(9, 21))
    assert records(child)[0]["loss"] < records(parent)[0]["loss"], "weights and optimizer went on"


@needs_megatron
def test_native_nvfp4_is_refused_on_a_card_without_it(tmp_path, data_dir):
    if torch.cuda.get_device_capability() in ((10, 0), (10, 3)):
        pytest.skip("this card has it")
    _, code, said = trained(tmp_path / "run", data_dir, options=())
    assert code != 0
    assert "native NVFP4 needs compute capability 10.0 or 10.3" in said
