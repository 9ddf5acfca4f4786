"""A linear layer forward and backward, all quantisation included, against the same three products in BF16.

    layer/bf16_tensors/TxKxN   BF16 weight and BF16 weight gradient: the fastest that BF16 can be, the others' floor
    layer/RECIPE/TxKxN         our layer under configs/recipes/RECIPE.yaml: FP32 main weight, FP32 weight gradient

T tokens, K input, N output features. `ratio` is the multiple of the floor's time, each timed in blocks of its own
that take turns, since the time of the same products drifts (on an H200 by 14 % within half an hour). On a GPU a CUDA
graph is timed. Details: `ratio_in_turn`, the two call by call in turn (machine.py says why that is another number),
and `eager_over_bf16`, with Python's launches.

Does not: update weights (`steps.py`), or check results (tests/recipes does).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from repro.bench.machine import Machine, Prepared
from repro.bench.rows import Case, Measurement, Target

if TYPE_CHECKING:
    from repro.experiments.recipe import Recipe

#: Tokens, input features, output features.
GPU_SHAPES = ((8192, 5120, 20480), (8192, 4096, 4096), (16384, 1024, 4096))
CPU_SHAPES = ((2048, 512, 2048), (512, 256, 1024))
RECIPES = ("bf16", "fp8_block", "mxfp4", "nvfp4")
#: Multiples of BF16's time that NVFP4 is to stay within on an H200.
NVFP4_TARGETS = dict(zip(GPU_SHAPES, (1.02, 1.15, 1.35), strict=True))

_Shape = tuple[int, int, int]
#: One forward and backward pass; the number is not used.
Step = Callable[[int], object]


def layer_cases(machine: Machine, *, shapes: tuple[_Shape, ...] | None = None) -> list[Case]:
    """One case a shape and recipe; `shapes` defaults to the device's."""
    bench = Layers(machine)
    cases = []
    for shape in shapes or (GPU_SHAPES if machine.is_gpu else CPU_SHAPES):
        words = "x".join(map(str, shape))
        cases.append(
            Case(
                f"layer/bf16_tensors/{words}",
                f"layer {words}, three BF16 products",
                lambda shape=shape: bench.measure_floor(shape),
            )
        )
        for recipe in RECIPES:
            target = NVFP4_TARGETS.get(shape) if recipe == "nvfp4" and machine.is_gpu else None
            cases.append(
                Case(
                    f"layer/{recipe}/{words}",
                    f"layer {words}, recipe {recipe}",
                    lambda shape=shape, recipe=recipe: bench.measure(recipe, shape),
                    Target("<=", target) if target else None,
                )
            )
    return cases


def load_recipe_of(machine: Machine, name: str) -> Recipe:
    """A recipe of the machine's folder. Raises ValueError naming the file and what is wrong in it."""
    from repro.experiments.recipe import load_recipe  # needs pydantic, which a bare GPU machine may lack

    return load_recipe(machine.configs / "recipes" / f"{name}.yaml")


class Bf16Products(torch.autograd.Function):
    """y [T, N] = x w^T and its two gradients in BF16, nothing else."""

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor) -> Tensor:  # noqa: ANN001
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN001
        x, w = ctx.saved_tensors
        return g @ w, g.t() @ x


class Layers:
    """Times of layers beside those of the BF16 products, of which those of the last shape are kept."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._floor: tuple[_Shape, Step, Prepared] | None = None

    def tensors(self, shape: _Shape) -> tuple[Tensor, Tensor, Tensor]:
        """x [T, K], gradient of y [T, N], both BF16, and the FP32 weight [N, K]."""
        num_tokens, num_inputs, num_outputs = shape
        x = self.machine.randn(num_tokens, num_inputs, seed=1).requires_grad_()
        grad = self.machine.randn(num_tokens, num_outputs, seed=2) * 1e-4
        weight = self.machine.randn(num_outputs, num_inputs, seed=3).float() / num_inputs**0.5
        return x, grad, weight

    def floor(self, shape: _Shape) -> tuple[Step, Prepared]:
        """The BF16 products."""
        if self._floor is None or self._floor[0] != shape:
            self._floor = None  # its memory first
            x, grad, weight = self.tensors(shape)
            w = weight.bfloat16().requires_grad_()

            def step(_: int) -> object:
                return torch.autograd.grad(Bf16Products.apply(x, w), (x, w), grad)

            self._floor = shape, step, self.machine.prepare(step)
        return self._floor[1:]

    def measure_floor(self, shape: _Shape) -> Measurement:
        step, prepared = self.floor(shape)
        seconds = self.machine.seconds_of(prepared)
        return self._measurement(shape, seconds, seconds, step, "")

    def measure(self, recipe_name: str, shape: _Shape) -> Measurement:
        step, product = self.step_of(recipe_name, shape)
        note = "" if recipe_name == "bf16" else f"{recipe_name} products: {product}"
        return self.compare(step, shape, note)

    def step_of(self, recipe_name: str, shape: _Shape) -> tuple[Step, str]:
        """Our layer under a recipe, and what its products are: the card's own or emulated."""
        from repro.recipes import QuantizedLinear, RunContext

        recipe = load_recipe_of(self.machine, recipe_name)
        x, grad, weight = self.tensors(shape)
        context = RunContext(1)
        layer = QuantizedLinear(nn.Parameter(weight), recipe, name="layer", block=0, context=context)

        def step(_: int) -> object:
            context.step = 0
            return torch.autograd.grad(layer(x), (x, layer.weight), grad)

        return step, next(iter(layer.describe())).get("product", "emulated")

    def compare(self, step: Step, shape: _Shape, note: str = "") -> Measurement:
        """`step` beside the floor."""
        both = self.machine.prepare(step), self.floor(shape)[1]
        in_turn, floor_in_turn = self.machine.seconds_in_turn(*both)
        seconds, floor = self.machine.seconds_in_blocks(*both)
        found = self._measurement(shape, seconds, floor, step, note)
        found.details["ratio_in_turn"] = in_turn / floor_in_turn
        return found

    def _measurement(self, shape: _Shape, seconds: float, floor: float, step: Step, note: str) -> Measurement:
        details = {"tflops": 6 * shape[0] * shape[1] * shape[2] / seconds / 1e12}
        if self.machine.is_gpu:
            eager, eager_floor = (self.machine.eager_seconds(call) for call in (step, self.floor(shape)[0]))
            details |= {"eager_seconds": eager, "eager_over_bf16": eager / eager_floor}
        return Measurement(
            measured=seconds,
            floor=floor,
            floor_from="three BF16 products, measured beside it",
            ratio=seconds / floor,
            note=note,
            details=details,
        )
