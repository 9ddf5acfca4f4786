"""Training by the fused path and by the PyTorch reference: the two ways, what they count, how far losses may differ.

As a script under TRITON_INTERPRET=1 it trains a smaller model by the Triton kernels in their interpreter, the FP8
layer of a GPU included, and prints one line per check.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest
import torch
from small_segment import MODEL, RECIPES, SEQUENCE, freeze, nvfp4_recipe, operand, write_data

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


def assert_close(ours, reference, product: str) -> None:
    """FP8 losses of two paths whose products add in another order.

    A product is wrong by e of its norm. Errors of all layers, were they to add up, move logits of order one by
    NUM_LAYERS e, and the loss of the first step by no more. Later steps start from weights that Adam has moved by
    its learning rate whichever way a small gradient pointed, so that single losses of two orders of summation come
    apart by 2e-3 nats within 20 steps however small e is (1.2e-6 or 1.3e-4, in the simulation of test_fused_path);
    their mean over the steps does not, and is held to NUM_LAYERS times the card's error, 1.0e-3 nats: an eighth of
    what NVFP4 costs here.
    """
    first = training_losses(ours)[0] - training_losses(reference)[0]
    assert abs(first) <= NUM_LAYERS * PRODUCT_ERRORS[product]
    assert abs(mean_difference(ours, reference)) <= NUM_LAYERS * PRODUCT_ERRORS["card"]


# in the interpreter


def freeze_smaller(folder: Path, recipe: str, num_steps: int) -> Path:
    """Attention and a feed-forward, one sequence a step: the interpreter takes two seconds a step, where it takes
    fifteen for the model of small_segment."""
    model = {key: value for key, value in MODEL.items() if not key.startswith("mamba")}
    tokens = {
        "horizon_tokens": 20 * SEQUENCE,
        "start_tokens": 0,
        "end_tokens": num_steps * SEQUENCE,
        "sequence_length_tokens": SEQUENCE,
        "batch_sequences": 1,
        "micro_batch_sequences": 1,
        "warmup_tokens": 2 * SEQUENCE,
        "decay_start_tokens": 16 * SEQUENCE,
        "learning_rate_max": 3e-3,
        "learning_rate_min": 3e-5,
        "decay_shape": "linear",
    }
    # Of this process alone: freeze takes the name of a recipe.
    RECIPES["smaller"] = lambda: ALL_RECIPES[recipe]() | {"bf16_blocks": {"first": 0, "last": 0}}
    blend = {"until_tokens": 20 * SEQUENCE, "blend": {"code": 0.5, "prose": 0.5}}
    return freeze(
        folder,
        recipe="smaller",
        model=model | {"pattern": "*-"},
        schedule=tokens,
        data={"name": "test", "seed": 7, "phases": [blend]},
        validation={"sequences": 2, "every_tokens": 20 * SEQUENCE},
        checkpoints={"every_tokens": 20 * SEQUENCE, "keep_last": 2, "keep_tokens": []},
    )


def in_interpreter(recipe: str, num_steps: int):
    """(fused, reference): the records of both."""
    with tempfile.TemporaryDirectory() as folder:
        data, path = (
            write_data(Path(folder) / "data"),
            freeze_smaller(Path(folder) / "run", recipe, num_steps),
        )
        with fused_path("interpreter", has_fp8_layer=recipe == "fp8"):
            fused = train(path, data, Path(folder) / "fused", like_a_gpu=True)
        with reference_path():
            return fused, train(path, data, Path(folder) / "reference", like_a_gpu=True)


def check_equal(recipe: str, num_steps: int) -> None:
    fused, plain = in_interpreter(recipe, num_steps)
    assert fused == plain


def check_fp8_exact(num_steps: int) -> None:
    with exact_products():
        check_equal("fp8", num_steps)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    # One step of NVFP4, and the validation after it with the weights that the step made: 20 would take a minute.
    # MXFP4 differs in the kernel alone, and gpu_cases.py has that.
    checks = {
        "nvfp4": lambda: check_equal("nvfp4", 1),
        "fp8, exact products": lambda: check_fp8_exact(2),
        "fp8, emulated product": lambda: assert_close(*in_interpreter("fp8", 2), "emulated"),
    }
    for name, check in checks.items():
        check()
        print(f"passed {name}", flush=True)
    sys.exit(0)
