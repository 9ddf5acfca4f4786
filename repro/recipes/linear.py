"""The linear layer whose three GEMMs follow a recipe, operand by operand.

Section 4 and Figure 5 of arXiv 2509.25149. With T tokens, K input and N output features:

    fprop  y  [T, N] = x w^T     rounded to BF16
    dgrad  dx [T, K] = g w       rounded to BF16
    wgrad  dw [N, K] = g^T x     left in FP32 (Section 4.1 keeps weight gradients in FP32)

Every operand is made from the high-precision tensor: activations and output gradients from their BF16 values (an
input that holds other values is rounded to BF16 first), weights from the FP32 main weight. Nothing quantised is
quantised again. Where a recipe gives Fprop and Dgrad the same representation of the weight (2D scales, Section 4.3),
the operand of Fprop is kept and used again; where it does not (1-D scales along each GEMM's own dimension), Dgrad
makes its own.

The product is emulated: operands hold code value times block scale, exact in their dtype; products accumulate in
FP32; the FP32 tensor scales multiply the accumulated result; then it is rounded once. On a GPU the two copies of x,
and those of g, come from one pass over the tensor, and the copy of x for Wgrad is kept in place of x; `Joined` says
what such a pass does for a neighbour besides. There the FP8 baseline has a layer of its own, whose sums may be the
card's instead of FP32's (fp8_linear.py). Layers that are given the same x share its operands (last_input.py).

A bias (the paper's models have none) is added to the rounded product, in FP32, and the sum is rounded to BF16.

Does not: decide which layers are quantised (apply.py), or reproduce the summation order of FP4 tensor cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from repro.experiments.recipe import GEMM_OPERANDS, Recipe
from repro.numerics.operand import Operand
from repro.numerics.source import Source, SquaredRelu, SquaredReluGradient, materialise
from repro.recipes import fp8_linear
from repro.recipes.context import RunContext
from repro.recipes.handles import new_handle
from repro.recipes.operands import OperandPlan, make_pair, pays_as_pair
from repro.recipes.product import as_written, operand_product


@dataclass(frozen=True)
class Joined:
    """What the passes that quantise a layer's tensors do besides, for a neighbour; by default nothing (joined.py)."""

    #: The layer's input is relu(x)^2 of the x that it is given. It returns the gradient of relu(x)^2, not that of x:
    #: whoever made x has `squares_output`.
    squares_input: bool = False
    #: The next layer has `squares_input`, so that the gradient coming in is that of relu(y)^2.
    squares_output: bool = False
    #: x's operands of Fprop and of Wgrad, where they are made already (last_input.py).
    pair_of_x: tuple[Operand, Operand] | None = None


class QuantizedLinear(nn.Linear):
    """y = x w^T with the precision of `recipe` in all three GEMMs.

    Args:
        weight: the FP32 main weight [N, K]; kept as the same Parameter, so an optimizer that holds it goes on. In a
            model held in BF16 these are quantised, and their gradients are rounded to BF16.
        recipe: rules of the six operands; its `bf16_blocks` are ignored here.
        name: qualified name of the layer in its model, part of its random streams.
        block: index of the block it belongs to.
        context: shared by all layers of a run.
        bias: [N] or None; kept likewise.

    Forward takes x [..., K] in float32 or bfloat16 and returns [..., N] in x's dtype, under autocast to bfloat16 in
    that, holding BF16 values. The gradient of x has x's dtype and BF16 values, that of the weight is FP32 and
    unrounded, and zero where there are no tokens. An nn.Linear by type, so that what finds linear layers in a model
    still finds it; never read its `weight` past `forward`.

    Raises:
        ValueError: K or N is no multiple of a transform that acts along it; weight in another dtype; in forward where
            the weight's gradient will be asked for, the number of tokens is no multiple of Wgrad's transform; x has
            other than K features, or another dtype; autocast to float16.
    """

    def __init__(
        self,
        weight: nn.Parameter,
        recipe: Recipe,
        *,
        name: str,
        block: int,
        context: RunContext,
        bias: nn.Parameter | None = None,
    ) -> None:
        if weight.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"layer {name}: weights are float32 or bfloat16, these are {weight.dtype}")
        num_outputs, num_inputs = weight.shape
        # On the meta device the parent's initialisation neither allocates nor draws random numbers.
        super().__init__(num_inputs, num_outputs, bias=False, device="meta")
        self.weight = weight
        self.bias = bias
        self.name = name
        self.block = block
        self.context = context
        self.plans: dict[str, tuple[OperandPlan, OperandPlan]] = {}
        for gemm, operands in GEMM_OPERANDS.items():
            first, second = (
                OperandPlan(recipe.rule(gemm, operand), layer=name, gemm=gemm, operand=operand)
                for operand in operands
            )
            self.plans[gemm] = (first, second)
        self.reuses_weight = recipe.same_representation("w")
        #: What a compiled graph calls the layer by; no buffer, since it belongs to no state and stays on the CPU.
        self.handle = new_handle(self)
        kept = self.plans["wgrad"][0], self.plans["fprop"][1]
        format_x, format_w = (plan.describe()["format"] for plan in kept)
        #: Formats of the operands that are kept for the backward pass: x's of Wgrad, and the weight's or "-".
        self.layout = f"{format_x} {format_w if self.reuses_weight else '-'}"
        self._multiplies_fp8 = fp8_linear.has_fp8_product(self.plans)
        self._token_multiple = self.plans["wgrad"][0].hadamard
        self._check_multiple("fprop", "input features (K)", num_inputs)
        self._check_multiple("dgrad", "output features (N)", num_outputs)

    def forward(self, x: Tensor, joined: Joined | None = None) -> Tensor:
        """x [..., K] -> [..., N]; see the class. joined: what is done for a neighbour besides; None: nothing."""
        if torch.compiler.is_compiling():
            from repro.recipes import compiled

            return compiled.product(self, x, joined)
        return self.product(x, joined)

    def fits_operator(self, x: Tensor, joined: Joined | None) -> bool:
        """Whether a compiled graph calls the layer as one operator; else it is interrupted by the call."""
        on_card = self._multiplies_fp8 and x.is_cuda
        return joined is None and self.context.observer is None and not on_card

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy is a layer of its own."""
        super().__setstate__(state)
        self.handle = new_handle(self)

    def product(self, x: Tensor, joined: Joined | None) -> Tensor:
        """`forward`, which calls it, without a look at torch.compile."""
        assert joined is None or self.bias is None, "what is done for a neighbour knows no bias"
        given, x = x, self.autocast(x)
        with as_written(x.device):
            self.check_input(x, torch.is_grad_enabled() and self.weight.requires_grad)
            # In evaluation nothing is made for Wgrad; an autograd function is told of a weight's need even there.
            weight = self.weight if torch.is_grad_enabled() else self.weight.detach()
            if x.numel() == 0:  # an expert that gets no token; there is nothing to quantise
                y = nn.functional.linear(x, weight.to(x.dtype))
            elif joined is None and self._multiplies_fp8 and fp8_linear.runs(self, x.device):
                y = fp8_linear.Fp8Product.apply(x, weight, self)
            else:
                joined = joined or Joined(pair_of_x=self.context.last_input.pair_for(self, given))
                y = _QuantizedProduct.apply(x, weight, self, joined)
            return y if self.bias is None else add_bias(y, self.bias)

    def autocast(self, x: Tensor) -> Tensor:
        """x as autocast, where it is on, hands it to a linear layer."""
        if not torch.is_autocast_enabled(x.device.type):
            return x
        dtype = torch.get_autocast_dtype(x.device.type)
        if dtype != torch.bfloat16:
            raise ValueError(f"{self.name}: autocast to {dtype}; quantised layers take torch.bfloat16")
        return x.to(dtype)

    def check_input(self, x: Tensor, needs_dw: bool) -> None:
        """Raises ValueError for an x that `forward` does not take, if `needs_dw` with Wgrad to come; see class."""
        if x.shape[-1] != self.in_features:
            raise ValueError(
                f"{self.name} takes {self.in_features} features, got a tensor of {tuple(x.shape)}"
            )
        if x.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"{self.name} takes float32 or bfloat16, got {x.dtype}")
        if self._token_multiple and needs_dw:
            self._check_multiple("wgrad", "tokens (T)", x.numel() // self.in_features)

    def pairs_x(self, x: Tensor) -> bool:
        """Whether both operands of x should come from one pass where both are needed."""
        return pays_as_pair(self.plans["fprop"][0], self.plans["wgrad"][0], x, self.context)

    def pairs_g(self, g: Tensor) -> bool:
        """Whether both operands of g should come from one pass where both are needed."""
        return pays_as_pair(self.plans["dgrad"][0], self.plans["wgrad"][1], g, self.context)

    def make_pair_of_x(self, x: Source) -> tuple[Operand, Operand]:
        """x [..., K], or what stands for x -> its operands of Fprop and Wgrad, from one pass; where `pairs_x`."""
        plans = self.plans["fprop"][0], self.plans["wgrad"][0]
        signs = tuple(_signs(plan, self.context, self.weight.device) for plan in plans)
        return make_pair(*plans, as_matrix(x) if isinstance(x, Tensor) else x, self.context, signs)

    def describe(self) -> Iterator[dict[str, str | int]]:
        """The six lines of the precision record that belong to this layer, read from what runs.

        On a GPU those of an FP8 layer also say which `product` runs: "card" or "emulated" (fp8_linear.py).
        """
        product = {}
        if self._multiplies_fp8 and self.weight.is_cuda:
            product = {"product": fp8_linear.choose(self, self.weight.device)}
        for plans in self.plans.values():
            for plan in plans:
                yield {"layer": self.name, "block": self.block, **plan.describe(), **product}

    def extra_repr(self) -> str:
        """Shape and, for each GEMM, the formats of its operands."""
        formats = ", ".join(
            f"{gemm}={first.describe()['format']}x{second.describe()['format']}"
            for gemm, (first, second) in self.plans.items()
        )
        return f"{self.in_features}, {self.out_features}, block={self.block}, {formats}"

    def _check_multiple(self, gemm: str, dimension: str, size: int) -> None:
        multiple = self.plans[gemm][0].hadamard
        if multiple and size % multiple:
            raise ValueError(
                f"layer {self.name}: the {multiple}x{multiple} Hadamard transform of {gemm} acts along its "
                f"{dimension}, and {size} is no multiple of {multiple}"
            )


class _QuantizedProduct(torch.autograd.Function):
    """The three GEMMs. The backward pass uses the straight-through estimate: rounding has derivative one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: QuantizedLinear, joined: Joined) -> Tensor:
        is_pair = joined.pair_of_x is not None or (ctx.needs_input_grad[1] and layer.pairs_x(x))
        y, x_kept, operand_w = output(layer, x, weight, joined, is_pair)
        # Least memory: BF16 activations, and a second copy of the weight only where Dgrad has to see the same one.
        kept = operand_w if layer.reuses_weight else Operand(weight, None, None)
        ctx.layer, ctx.weight_scale, ctx.weight_amax = layer, kept.scale, kept.amax
        ctx.moment = layer.context.moment
        ctx.x_scale, ctx.is_pair = x_kept.scale, is_pair
        ctx.save_for_backward(x_kept.values, kept.values, weight, y if joined.squares_output else None)
        return y.to(x.dtype).view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    @once_differentiable  # a gradient penalty would differentiate through detached operands, to other numbers
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, w, weight, y = ctx.saved_tensors
        kept = Operand(x, ctx.x_scale, None), Operand(w, ctx.weight_scale, ctx.weight_amax)
        needs = ctx.needs_input_grad[:2]
        # Both operands of Wgrad must have the signs that the forward pass drew.
        with as_written(grad.device), ctx.layer.context.at(ctx.moment):
            return *gradients(ctx.layer, grad, weight, y, *kept, needs, ctx.is_pair), None, None


def output(
    layer: QuantizedLinear, x: Tensor, weight: Tensor, joined: Joined, is_pair: bool
) -> tuple[Tensor, Operand, Operand]:
    """y [T, N] in BF16; what Wgrad keeps of x: its operand where `is_pair`, else x itself in BF16; w's operand."""
    plan_x, plan_w = layer.plans["fprop"]
    signs = _signs(plan_x, layer.context, x.device)
    operand_x, x_kept = joined.pair_of_x or _quantise_x(x, layer, signs, joined.squares_input, is_pair)
    operand_w = plan_w.make(weight, layer.context, signs)
    y = operand_product(operand_x, operand_w, operand_x.values, operand_w.values.t(), dtype=torch.bfloat16)
    return y, x_kept, operand_w


def gradients(
    layer: QuantizedLinear,
    grad: Tensor,
    weight: Tensor,
    y: Tensor | None,
    x_kept: Operand,
    w_kept: Operand,
    needs: tuple[bool, bool],
    is_pair: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradient of x, in grad's dtype, and that of the weight, in FP32, where they are needed.

    y: where grad is that of relu(y)^2. x_kept: see `output`. w_kept: read where the layer `reuses_weight`.
    """
    context = layer.context
    g_bf16 = as_matrix(grad)
    source = g_bf16 if y is None else SquaredReluGradient(g_bf16, y)
    dx = dw = None
    plan_g, plan_w = layer.plans["dgrad"]
    plan_x, plan_wgrad_g = layer.plans["wgrad"]
    signs = _signs(plan_g, context, grad.device)
    wgrad_signs = _signs(plan_x, context, grad.device)
    needs_dx, needs_dw = needs
    if needs_dx and needs_dw and layer.pairs_g(g_bf16):
        operand_g, wgrad_g = make_pair(plan_g, plan_wgrad_g, source, context, (signs, wgrad_signs))
    else:
        g_bf16, operand_g, wgrad_g = materialise(source), None, None
    if needs_dx:
        operand_g = operand_g or plan_g.make(g_bf16, context, signs)
        operand_w = w_kept
        if layer.reuses_weight:
            plan_w.show(weight, operand_w, context)
        else:
            operand_w = plan_w.make(weight, context, signs)
        dx = operand_product(operand_g, operand_w, operand_g.values, operand_w.values, dtype=torch.bfloat16)
        dx = dx.to(grad.dtype).view(*grad.shape[:-1], weight.shape[1])
    if needs_dw:
        operand_x = x_kept if is_pair else plan_x.make(x_kept.values, context, wgrad_signs)
        wgrad_g = wgrad_g or plan_wgrad_g.make(g_bf16, context, wgrad_signs)
        dw = operand_product(wgrad_g, operand_x, wgrad_g.values.t(), operand_x.values, dtype=torch.float32)
    return dx, dw


def _quantise_x(
    x: Tensor, layer: QuantizedLinear, signs: Tensor | None, squares: bool, is_pair: bool
) -> tuple[Operand, Operand]:
    """x's operand of Fprop, and what Wgrad keeps of x; see `output`."""
    x_bf16 = as_matrix(x)
    source = SquaredRelu(x_bf16) if squares else x_bf16
    if is_pair:
        return layer.make_pair_of_x(source)
    x_bf16 = materialise(source)
    return layer.plans["fprop"][0].make(x_bf16, layer.context, signs), Operand(x_bf16, None, None)


def add_bias(y: Tensor, bias: Tensor) -> Tensor:
    """y [..., N] + bias [N] in FP32, rounded to BF16, in y's dtype."""
    return (y + bias.float()).to(torch.bfloat16).to(y.dtype)


def as_matrix(x: Tensor) -> Tensor:
    """x [..., N] -> [T, N] in BF16, contiguous."""
    return x.reshape(-1, x.shape[-1]).to(torch.bfloat16).contiguous()


def _signs(plan: OperandPlan, context: RunContext, device: torch.device) -> Tensor | None:
    """Signs of a GEMM's transform, the same for both operands; None without a transform."""
    if not plan.hadamard:
        return None
    return context.signs(plan.hadamard, plan.signs, plan.layer, plan.gemm, device)
