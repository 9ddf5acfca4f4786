"""Training by the fused path and by the PyTorch reference: the two ways, what they count, how far losses differ."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest
import torch
from small_segment import RECIPES, STEP_TOKENS, nvfp4_recipe, operand

from repro.numerics.cpu import binding as cpu_binding
from repro.numerics.operand import make_operand_reference
from repro.portable.frozen import load_frozen
from repro.portable.gpu import prepare_model, prepare_process
from repro.portable.metrics import comparable
from repro.portable.trainer import Trainer
from repro.recipes import fp8_linear, linear, operands

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
#: Quantised layers of the model of small_segment.
NUM_LAYERS = 8


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


ALL_RECIPES = {**RECIPES, "nvfp4": nvfp4_recipe, "fp8": fp8_recipe, "mxfp4": mxfp4_recipe}


def train(path, data_dir, state, device="cpu", *, like_a_gpu=False, emulate_fp8=False):
    """The records of a run. like_a_gpu: BF16 activations on a CPU too."""
    torch.set_num_threads(1)
    if device == "cuda":
        prepare_process(torch.device("cuda:0"))
    trainer = Trainer(
        load_frozen(path), data_dir=data_dir, state_root=state, device=device, emulate_fp8=emulate_fp8
    )
    if like_a_gpu:
        prepare_model(trainer.model, fuse=False)
    try:
        assert trainer.run() == "completed"
    finally:
        trainer.close()
    return comparable((path.parent / "metrics.jsonl").read_text())


# the two ways


@contextlib.contextmanager
def reference_path() -> Iterator[None]:
    """Every operand from PyTorch, by linear.py, one at a time."""
    calls = []

    def reference(x, spec, **arguments):
        calls.append(spec)
        return make_operand_reference(x, spec, **arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operands, "make_operand", reference)
        patch.setattr(linear, "pays_as_pair", lambda *_: False)
        patch.setattr(fp8_linear, "runs", lambda *_: False)
        yield
    assert calls, "the reference never ran: this compares a path with itself"


@contextlib.contextmanager
def fused_path(device: str, *, has_fp8_layer: bool = False) -> Iterator[None]:
    """What trains, and that no operand came from elsewhere. "interpreter": what trains on a GPU, on a CPU.

    has_fp8_layer: FP8 layers run as a GPU's do, else by linear.py as where rules are not the baseline's.
    """
    made = {"fused": 0, "stored": 0, "reference": 0}

    def counted(patch, owner, name, kind):
        inner = getattr(owner, name)

        def call(*arguments, **named):
            result = inner(*arguments, **named)
            made["reference" if result is None and owner is cpu_binding else kind] += 1
            return result

        patch.setattr(owner, name, call)

    with pytest.MonkeyPatch.context() as patch:
        if device == "cpu":
            counted(patch, cpu_binding, "_run", "fused")
        else:
            from repro.numerics.gpu import binding, packing, passes

            counted(patch, passes.Pass, "run", "fused")
            counted(patch, packing.StorePass, "__call__", "stored")
            counted(patch, binding, "_by_reference", "reference")
        if device == "interpreter":
            patch.setattr(operands, "make_operand", binding.make_operand_gpu)
            patch.setattr(operands, "make_operand_pair", binding.make_operand_pair_gpu)
            patch.setattr(linear, "pays_as_pair", lambda one, other, *_: bool(one.spec and other.spec))
        if device == "interpreter" or not has_fp8_layer:
            patch.setattr(fp8_linear, "runs", lambda *_: has_fp8_layer)
        yield
    assert made["stored" if has_fp8_layer else "fused"], f"no fused kernel ran: {made}"
    assert not made["reference"], f"the fused path took the reference: {made}"


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """FP8 products in FP64, where the order of a sum is lost in the rounding that follows, to BF16 or FP32: what
    quantises, and what is multiplied by what, are then compared to the bit."""

    def product(a, b, *, dtype):
        return (a.values().double() @ b.values().double().t()).to(dtype)

    def of_operands(a, b, left, right, *, dtype):
        assert a.scale is b.scale is None  # FP8 has no tensor scale
        return (left.double() @ right.double()).to(dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fp8_linear, "_product", lambda *_: product)
        patch.setattr(linear, "operand_product", of_operands)
        yield


# how far losses may differ


def recorded_error(*products: str) -> float:
    """Sum over these products of the largest relative error of each that was measured on a GPU."""
    errors = json.loads(sorted(RESULTS.glob("fp8_layer_h200_*.json"))[-1].read_text())["errors"]
    return sum(max(e["relative_error"] for e in errors if e["product"] == name) for name in products)


#: By the product that runs: its error and that of linear.py's FP32 product, which it is compared with.
FP32_PRODUCT = "fp32 product of scaled operands"
PRODUCT_ERRORS = {name: recorded_error(name, FP32_PRODUCT) for name in ("card", "emulated")}


def training_losses(records) -> list[float]:
    return [record["loss"] for record in records if record["kind"] == "train"]


def mean_difference(ours, reference) -> float:
    """In nats a token: of the training losses, mean over the steps."""
    pairs = zip(training_losses(ours), training_losses(reference), strict=True)
    return fmean(one - other for one, other in pairs)


def bound_of_first_loss(product: str) -> float:
    """Of a product that is wrong by e of its norm, in nats a token; the model and batch of small_segment.

    Rounded to BF16, whose numbers lie up to 2^-7 apart, a share e / 2^-7 of a result goes the other way, by 2^-7: a
    mean square of 2^-7 e, whichever way, in each layer and for each token. Losses move as logits of order one do;
    four standard deviations of their mean.
    """
    return 4 * (NUM_LAYERS * PRODUCT_ERRORS[product] * 2**-7 / STEP_TOKENS) ** 0.5


def assert_close(ours, reference, product: str, nvfp4=None) -> None:
    """FP8 losses of two paths whose products add in another order, and the losses of NVFP4 beside them.

    The first loss is within its bound: 1.0e-3 nats for the card, 1.1e-4 for the emulation. Later steps start from
    weights that Adam moved by its learning rate, whichever way a small gradient pointed: in 20 steps single losses
    come apart by 2e-3 nats however small e is (simulated for 1.2e-6 and 1.3e-4). Their mean over the steps is what
    has to stay far under an effect that is measured: a fifth of NVFP4's, which is 9e-3 nats here.
    """
    first = training_losses(ours)[0] - training_losses(reference)[0]
    assert abs(first) <= bound_of_first_loss(product)
    if nvfp4 is not None:
        assert abs(mean_difference(ours, reference)) < mean_difference(nvfp4, reference) / 5
