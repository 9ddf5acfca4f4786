"""A layer under observation: every operand that enters a GEMM, and what it should have been, computed another way."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from repro.experiments.recipe import Recipe
from repro.numerics import QuantSpec, block_format, derive_seed, quantize, random_bits
from repro.recipes import OperandPlan, QuantizedLinear, RunContext

RUN_SEED = 20250929
LAYER = "model.layers.3.mixer.up_proj"
TE_SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)
#: The dimension of each operand, in its own layout, that its GEMM sums over.
SUMMED = {("fprop", "x"): 1, ("fprop", "w"): 1, ("dgrad", "g"): 1, ("dgrad", "w"): 0, ("wgrad", "x"): 0}
SUMMED[("wgrad", "g")] = 0


@dataclass(frozen=True)
class Seen:
    """One call of the observer."""

    layer: str
    gemm: str
    operand: str
    original: Tensor
    values: Tensor
    scale: Tensor | None
    plan: OperandPlan

    def dequantized(self) -> Tensor:
        """float64: what the operand stands for."""
        return self.values.double() * (1.0 if self.scale is None else self.scale.double())


@dataclass
class Watched:
    """A layer with its inputs, and what it showed during one forward and backward pass."""

    layer: QuantizedLinear
    x: Tensor
    y: Tensor
    grad: Tensor
    seen: dict[tuple[str, str], Seen] = field(default_factory=dict)

    @property
    def dx(self) -> Tensor:
        return self.x.grad

    @property
    def dw(self) -> Tensor:
        return self.layer.weight.grad.cpu()


def bf16_values(*shape: int, generator: torch.Generator, spread: float = 1.0) -> Tensor:
    """Float32 storage of BF16 values; columns and rows of different magnitude, so that orientation shows."""
    rows = torch.exp2(torch.randint(-3, 4, (shape[0], 1), generator=generator).float())
    columns = torch.exp2(torch.randint(-3, 4, (1, shape[1]), generator=generator).float())
    return (torch.randn(shape, generator=generator) * rows * columns * spread).bfloat16().float()


def watch(
    recipe: Recipe,
    *,
    shape: tuple[int, int, int] = (128, 96, 64),
    step: int = 5,
    microbatch: int = 0,
    device: str = "cpu",
) -> Watched:
    """Runs a layer of shape (T, K, N) forward and backward; each (gemm, operand) must show itself once.

    Everything in the answer lies on the CPU, whichever device computed it.
    """
    num_tokens, num_inputs, num_outputs = shape
    generator = torch.Generator().manual_seed(11)
    calls: list[Seen] = []

    def observe(layer: str, gemm: str, operand: str, original: Tensor, made, plan) -> None:
        scale = None if made.scale is None else made.scale.cpu()
        calls.append(
            Seen(
                layer, gemm, operand, original.detach().cpu().clone(), made.values.cpu().clone(), scale, plan
            )
        )

    context = RunContext(RUN_SEED, observer=observe)
    context.step, context.microbatch = step, microbatch
    # The main weight is FP32 with bits that BF16 does not hold: Figure 5 quantises the weight from FP32.
    weight = nn.Parameter(
        (bf16_values(num_outputs, num_inputs, generator=generator) * 1.0009765625).to(device)
    )
    layer = QuantizedLinear(weight, recipe, name=LAYER, block=3, context=context)
    x = bf16_values(num_tokens, num_inputs, generator=generator).requires_grad_()
    grad = bf16_values(num_tokens, num_outputs, generator=generator, spread=1e-4)
    y = layer(x.to(device)).cpu()
    y.backward(grad)
    seen = {(call.gemm, call.operand): call for call in calls}
    assert len(calls) == len(seen) == 6, [(call.gemm, call.operand) for call in calls]
    return Watched(layer, x, y.detach(), grad, seen)


def expected_operand(
    original: Tensor,
    text: str,
    gemm: str,
    operand: str,
    *,
    format_name: str,
    step: int = 5,
    microbatch: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """(values, tensor scale) of an operand written as in recipe_variants, by explicit transposes and matrices.

    The scale is None for a format without one.
    """
    if text == "bf16":
        return original.bfloat16().float(), None
    blocks, rounding, size, signs = re.fullmatch(r"(1d|2d|shared) (rne|sr)(?: H(\d+) (\w+))?", text).groups()
    form = block_format(format_name)
    flip = SUMMED[gemm, operand] == 0 and blocks != "shared"
    turned = (
        original.float().t() if flip else original.float()
    ).contiguous()  # blocks along the last dimension
    if size:
        turned = _hadamard(turned, int(size), signs, gemm, step, microbatch)
    bits = None
    if rounding == "sr":
        seed = derive_seed(RUN_SEED, "sr", step, microbatch, LAYER, gemm, operand)
        bits = random_bits(seed, original.shape)
        bits = (bits.t() if flip else bits).contiguous()
    tile = form.tiles_2d if blocks == "2d" else form.tiles_1d
    quantized = quantize(turned, QuantSpec(form, tile, rounding=rounding), random_bits=bits)
    values = quantized.block_values()
    scale = quantized.amax[0] / form.tensor_max if form.tensor_scale else None
    return (values.t() if flip else values), scale


def _hadamard(rows: Tensor, size: int, signs: str, gemm: str, step: int, microbatch: int) -> Tensor:
    """Groups of `size` along the last dimension times diag(signs) H / sqrt(size), rounded to BF16."""
    if signs == "none":
        vector = torch.ones(size)
    elif signs == "per_transform":
        assert size <= 64
        seed = derive_seed(RUN_SEED, "signs", step, microbatch, LAYER, gemm, 0)
        vector = torch.tensor([1.0 - 2.0 * (seed >> i & 1) for i in range(size)])
    elif size == 16:
        vector = torch.tensor(TE_SIGNS, dtype=torch.float32)
    else:
        vector = 1.0 - 2.0 * (random_bits(0xD7E8, (size,)) & 1).float()
    matrix = torch.tensor(
        [[(-1.0) ** (i & j).bit_count() for j in range(size)] for i in range(size)], dtype=torch.float64
    )
    groups = rows.double().reshape(-1, size) * vector.double()
    return (groups @ matrix / math.sqrt(size)).bfloat16().float().reshape(rows.shape)


def assert_rounds_to(
    actual: Tensor, a: Tensor, b: Tensor, what: str, *, to_bf16: bool, unit: float = 2.0**-24
) -> None:
    """`actual` is the FP32-accumulated product a b of dequantised float64 operands, rounded once.

    Any order of FP32 summation of k products errs by at most k * unit * sum |a_i b_i| to first order, with a unit of
    2^-24 where sums are rounded to nearest; the two tensor scales add a relative 2^-24 each (4 * 2^-24 with their
    own rounding). The bound has no other slack: the BF16 result must lie between the roundings of exact - error and
    exact + error.
    """
    exact = a @ b
    error = unit * a.shape[1] * (a.abs() @ b.abs()) + 4 * 2.0**-24 * exact.abs()
    low, high = exact - error, exact + error
    if to_bf16:
        assert torch.equal(actual, actual.bfloat16().to(actual.dtype)), (
            f"{what} holds values that BF16 does not"
        )
        low, high = low.float().bfloat16().double(), high.float().bfloat16().double()
    wrong = (actual.double() < low) | (actual.double() > high)
    if wrong.any():
        i, j = wrong.nonzero()[0].tolist()
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.numel()} elements outside the bound, the first at [{i}, {j}]: "
            f"{actual[i, j].item()} not in [{low[i, j].item()}, {high[i, j].item()}]"
        )
