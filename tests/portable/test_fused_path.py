"""Training with the fused kernels against training with the PyTorch reference: the same losses, to the bit.

The fused path is what trains: the C++ kernel on a CPU, the Triton kernels on a GPU. Both paths hand the same operands
to the same products in the same order, so not one bit may differ.
"""

import pytest
import torch
from small_segment import RECIPES, freeze, operand

from repro.numerics.operand import make_operand_reference
from repro.portable.frozen import load_frozen
from repro.portable.metrics import comparable
from repro.portable.trainer import Trainer
from repro.recipes import linear, operands

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")],
    ),
]


def train(path, data_dir, state, device):
    torch.set_num_threads(1)
    if device == "cuda":
        from repro.portable.gpu import prepare_process

        prepare_process(torch.device("cuda:0"))
    trainer = Trainer(load_frozen(path), data_dir=data_dir, state_root=state, device=device)
    assert trainer.run() == "completed"
    trainer.close()
    return comparable((path.parent / "metrics.jsonl").read_text())


def fp8_recipe() -> dict:
    vector, square = operand(format="fp8_block"), operand(format="fp8_block", blocks="2d")
    products = {"fprop": {"x": vector, "w": square}, "dgrad": {"g": vector, "w": square}}
    return {
        "name": "fp8",
        **products,
        "wgrad": {"x": vector, "g": vector},
        "bf16_blocks": {"first": 0, "last": 1},
    }


def mxfp4_recipe() -> dict:
    plain = operand(format="mxfp4")
    rht = {"format": "mxfp4", "hadamard": 32, "signs": "fixed"}
    products = {
        "fprop": {"x": plain, "w": plain},
        "dgrad": {"g": operand(format="mxfp4", rounding="sr"), "w": plain},
    }
    wgrad = {"x": operand(**rht), "g": operand(rounding="sr", **rht)}
    return {"name": "mxfp4", **products, "wgrad": wgrad, "bf16_blocks": {"first": 0, "last": 1}}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("recipe", ["nvfp4", "fp8", "mxfp4"])
def test_20_steps_with_fused_kernels_give_the_losses_of_the_reference(
    tmp_path, data_dir, monkeypatch, recipe, device
):
    monkeypatch.setitem(RECIPES, "fp8", fp8_recipe)
    monkeypatch.setitem(RECIPES, "mxfp4", mxfp4_recipe)
    # The card's FP8 products add in their own order: this compares what quantises, with the same products.
    monkeypatch.setattr(linear.fp8_linear, "runs", lambda *_: False)
    fused = train(freeze(tmp_path / "run", recipe=recipe), data_dir, tmp_path / "fused", device)
    calls = []

    def reference(x, spec, **arguments):
        calls.append(spec)
        return make_operand_reference(x, spec, **arguments)

    monkeypatch.setattr(operands, "make_operand", reference)
    monkeypatch.setattr(linear, "pays_as_pair", lambda *_: False)
    plain = train(freeze(tmp_path / "run", recipe=recipe), data_dir, tmp_path / "reference", device)
    assert calls, "the reference never ran: this compares a path with itself"
    for one, other in zip(fused, plain, strict=True):
        assert one == other
