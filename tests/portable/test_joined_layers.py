"""Training with layers joined with their neighbours: the losses and weights of layers one by one, to the bit.

Joining is what a GPU does, eagerly and in CUDA graphs, with compiled fragments and without; on the CPU a stand-in for
the decision makes it happen, with BF16 activations as on a GPU.
"""

import pytest
import torch
from small_segment import RECIPES, freeze, nvfp4_recipe, operand

from repro.models.fragments import fuse_fragments
from repro.numerics import SquaredReluGradient
from repro.portable.frozen import load_frozen
from repro.portable.gpu import prepare_model, prepare_process
from repro.portable.graph import SWITCH
from repro.portable.metrics import comparable
from repro.portable.trainer import Trainer
from repro.recipes import apply, linear, operands

on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
#: Device, CUDA graphs, compiled fragments.
WAYS = [
    ("cpu", "0", False),
    *(pytest.param("cuda:0", graphs, fuse, marks=on_gpu) for graphs in "01" for fuse in (False, True)),
]


def fresh_signs_recipe() -> dict:
    recipe, rht = nvfp4_recipe(), {"hadamard": 16, "signs": "per_transform"}
    recipe["wgrad"] = {"x": operand(**rht), "g": operand(rounding="sr", **rht)}
    return recipe


def train(path, data_dir, state, device, *, fuse):
    """Metrics of every step, weights and moments of the last."""
    torch.set_num_threads(1)
    if device != "cpu":
        prepare_process(torch.device(device))
    trainer = Trainer(load_frozen(path), data_dir=data_dir, state_root=state, device=device, fuse=fuse)
    try:
        if device == "cpu":
            prepare_model(trainer.model, fuse=False)
        assert trainer.run() == "completed"
    finally:
        trainer.close()
        fuse_fragments(False)
    tensors = {**trainer.model.state_dict(), **trainer.optimizer.state_tensors()}
    return comparable((path.parent / "metrics.jsonl").read_text()), tensors


@pytest.mark.parametrize(("device", "graphs", "fuse"), WAYS)
@pytest.mark.parametrize("recipe", ["nvfp4", "fresh_signs"])
def test_20_steps_with_joined_layers_give_the_losses_and_weights_of_layers_one_by_one(
    tmp_path, data_dir, monkeypatch, recipe, device, graphs, fuse
):
    monkeypatch.setitem(RECIPES, "fresh_signs", fresh_signs_recipe)
    monkeypatch.setenv(SWITCH, graphs)
    if device == "cpu":
        monkeypatch.setattr(linear, "pays_as_pair", lambda one, other, *_: bool(one.spec and other.spec))
    kinds, make = [], operands.make_operand_pair
    monkeypatch.setattr(
        operands,
        "make_operand_pair",
        lambda source, *others: (kinds.append(type(source)), make(source, *others))[1],
    )
    path = freeze(tmp_path / "run", recipe=recipe)
    joined, tensors = train(path, data_dir, tmp_path / "joined", device, fuse=fuse)
    assert SquaredReluGradient in kinds, "no layers were joined: this compares a path with itself"
    kinds.clear()
    monkeypatch.setattr(apply, "JOINED", {})
    alone, expected = train(path, data_dir, tmp_path / "alone", device, fuse=fuse)
    assert SquaredReluGradient not in kinds
    for one, other in zip(joined, alone, strict=True):
        assert one == other
    for name, tensor in expected.items():
        assert torch.equal(tensors[name], tensor), name
