"""The linear layer of the FP8 baseline on a GPU: E4M3 operands, block-scaled products.

Appendix A.1 of arXiv 2509.25149: E4M3, 1x128 blocks of activations and gradients along each GEMM's contraction,
128x128 (or 1x128) blocks of weights, nearest even. With T tokens, K input and N output features:

    fprop  y  [T, N] = x w^T     x by rows [T, K]             w by rows [N, K]            BF16
    dgrad  dx [T, K] = g w       g by rows [T, N]             w by columns [K, N]         BF16
    wgrad  dw [N, K] = g^T x     g by columns [N, T]          x by columns [K, T]         FP32

Each tensor is read once for both its copies; the copies by columns of x and w wait for the backward pass, a byte a
value. Codes and scales have the bits of linear.py's operands. Two products multiply them, and the precision record of
a run says which one does:

    "card"       the card's own, where `choose` finds nothing against it. Hopper's tensor cores keep fewer bits of a
                 sum than FP32, so results differ from those of another card and from the emulation.
    "emulated"   FP32 sums of exact products: with `RunContext(emulate_fp8=True)`, and on GPUs without the card's

linear.py multiplies where `runs` says no: on CPUs, under an observer, for rules that are not the baseline's.

Does not: quantise or multiply (repro.numerics.gpu), or decide which layers run FP8 (apply.py).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from repro.numerics.formats import FP8_BLOCK
from repro.numerics.operand import gpu_kernels
from repro.recipes.operands import CONTRACTED, OperandPlan
from repro.recipes.product import as_written

if TYPE_CHECKING:
    from repro.numerics.gpu.fp8_operand import Fp8Operand
    from repro.recipes.linear import QuantizedLinear

_LOG = logging.getLogger(__name__)

Plans = dict[str, tuple[OperandPlan, OperandPlan]]


def has_fp8_product(plans: Plans) -> bool:
    """Whether some GEMM multiplies FP8 blocks by FP8 blocks, so that there is something to choose."""
    return any(all(plan.format == FP8_BLOCK for plan in pair) for pair in plans.values())


def runs(layer: QuantizedLinear, device: torch.device) -> bool:
    """Whether `Fp8Product` takes a layer for which `has_fp8_product` holds. Says once why a GPU has to do without."""
    if device.type != "cuda" or layer.context.observer is not None:
        return False
    if gpu_kernels() is None:  # which has said so, FP8 products included
        return False
    reason = _rules_differ(layer.plans)
    if reason is not None:
        _say("FP8 products are emulated by FP32 ones (exact, over ten times slower than BF16)", reason)
    return reason is None


def choose(layer: QuantizedLinear, device: torch.device) -> Literal["card", "emulated"]:
    """The product of a layer for which `has_fp8_product` holds. Says once why a GPU emulates unasked."""
    if not runs(layer, device) or layer.context.emulate_fp8:
        return "emulated"
    reason = _card_obstacle(device)
    if reason is None:
        return "card"
    _say("FP8 products are emulated by BF16 ones (exact, slower than BF16)", reason)
    return "emulated"


def _rules_differ(plans: Plans) -> str | None:
    """Why the card's products are not those of these rules; None if they are."""
    for gemm, pair in plans.items():
        for plan in pair:
            where = f"{gemm}.{plan.operand}"
            if plan.format != FP8_BLOCK:
                return f"{where} is not in FP8 blocks"
            if plan.hadamard or plan.rounding != "rne":
                return f"{where} is transformed or rounded stochastically"
            if plan.tile == FP8_BLOCK.tiles_1d and plan.along != CONTRACTED[gemm, plan.operand]:
                return f"{where} has blocks along another dimension than its product contracts"
            if plan.tile != FP8_BLOCK.tiles_1d and plan.operand != "w":
                return f"{where} has square blocks"
    if plans["fprop"][1].tile != plans["dgrad"][1].tile:
        return "the weight's blocks differ between fprop and dgrad"
    return None


def _card_obstacle(device: torch.device) -> str | None:
    from repro.numerics.gpu.fp8_product import obstacle

    return obstacle(device)


@functools.cache
def _say(what: str, reason: str) -> None:
    _LOG.warning("%s: %s", what, reason)


def _product(layer: QuantizedLinear, device: torch.device) -> Callable[..., Tensor]:
    """a, b, dtype -> a b^T."""
    from repro.numerics.gpu import fp8_emulation, fp8_product

    on_card = choose(layer, device) == "card"
    return fp8_product.block_scaled_product if on_card else fp8_emulation.emulated_product


class Fp8Product(torch.autograd.Function):
    """The three GEMMs; the gradient passes rounding by, as in linear.py."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: QuantizedLinear) -> Tensor:
        """x [..., K] -> [..., N] in x's dtype, holding BF16 values."""
        from repro.numerics.gpu.fp8_operand import fp8_copies

        needs_dx, needs_dw = ctx.needs_input_grad[:2]
        x_bf16 = x.reshape(-1, x.shape[-1]).to(torch.bfloat16).contiguous()
        square = layer.plans["fprop"][1].tile == FP8_BLOCK.tiles_2d
        copies_x = fp8_copies(x_bf16, columns=needs_dw)
        copies_w = fp8_copies(weight, square=square, columns=needs_dx)
        _note(layer, copies_x.amax, 1 + needs_dw)
        _note(layer, copies_w.amax, 1 + (needs_dx and not square))
        ctx.layer = layer
        ctx.save_for_backward(*_tensors(copies_x.columns), *_tensors(copies_w.columns))
        ctx.kept = _shape(copies_x.columns), _shape(copies_w.columns)
        y = _product(layer, x.device)(copies_x.rows, copies_w.rows, dtype=torch.bfloat16)
        return y.to(x.dtype).reshape(*x.shape[:-1], weight.shape[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """grad [..., N]; dx in its dtype with BF16 values, dw [N, K] in FP32."""
        from repro.numerics.gpu.fp8_operand import fp8_copies

        needs_dx, needs_dw = ctx.needs_input_grad[:2]
        x_codes, x_scales, w_codes, w_scales = ctx.saved_tensors
        g_bf16 = grad.reshape(-1, grad.shape[-1]).to(torch.bfloat16).contiguous()
        copies = fp8_copies(g_bf16, rows=needs_dx, columns=needs_dw)
        _note(ctx.layer, copies.amax, needs_dx + needs_dw)
        product, dx, dw = _product(ctx.layer, grad.device), None, None
        with as_written(grad.device):
            if needs_dx:
                kept = _operand(w_codes, w_scales, ctx.kept[1])
                dx = product(copies.rows, kept, dtype=torch.bfloat16)
                dx = dx.to(grad.dtype).reshape(*grad.shape[:-1], dx.shape[-1])
            if needs_dw:
                kept = _operand(x_codes, x_scales, ctx.kept[0])
                dw = product(copies.columns, kept, dtype=torch.float32)
        return dx, dw, None


def _note(layer: QuantizedLinear, amax: Tensor, num_operands: int) -> None:
    """Counts an amax once for each operand that has it, as the emulation does."""
    for _ in range(num_operands):
        layer.context.note_amax(amax)


def _tensors(operand: Fp8Operand | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if operand is None else (operand.codes, operand.scales)


def _shape(operand: Fp8Operand | None) -> tuple[bool, tuple[int, int]] | None:
    return None if operand is None else (operand.is_square, operand.shape)


def _operand(codes: Tensor, scales: Tensor, kept: tuple[bool, tuple[int, int]]) -> Fp8Operand:
    from repro.numerics.gpu.fp8_operand import Fp8Operand

    return Fp8Operand(codes, scales, *kept)
