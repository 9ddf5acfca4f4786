"""The FP8 layer of a GPU in Triton's interpreter (as a script): with its emulated product it is linear.py's layer.

Operands, gradients, shapes and counts are those that linear.py gives; on a card the product alone differs.
"""

from __future__ import annotations

import sys
import warnings

import torch
from recipe_variants import VARIANTS
from torch import nn
from watch import LAYER, assert_rounds_to, watch

from repro.recipes import QuantizedLinear, RunContext, fp8_linear


def check_layer(recipe, shape, *, needs_dx=True, needs_dw=True):
    """Fp8Product against the operands that linear.py's layer shows."""
    shown = watch(recipe, shape=shape)
    operand = {key: seen.dequantized() for key, seen in shown.seen.items()}
    context = RunContext(1)
    context.step = 0
    weight = nn.Parameter(shown.layer.weight.detach().clone(), requires_grad=needs_dw)
    layer = QuantizedLinear(weight, recipe, name=LAYER, block=3, context=context)
    # Two leading dimensions, as a batch of sequences has.
    x = shown.x.detach().reshape(2, -1, shape[1]).requires_grad_(needs_dx)
    y = fp8_linear.Fp8Product.apply(x, weight, layer)
    y.backward(shown.grad.reshape(y.shape))
    assert y.dtype == x.dtype
    y = y.detach().flatten(0, 1)
    assert_rounds_to(y, operand["fprop", "x"], operand["fprop", "w"].t(), "y", to_bf16=True)
    if needs_dx:
        assert x.grad.dtype == x.dtype
        dx = x.grad.flatten(0, 1)
        assert_rounds_to(dx, operand["dgrad", "g"], operand["dgrad", "w"], "dx", to_bf16=True)
    if needs_dw:
        assert weight.grad.dtype == torch.float32
        dw = weight.grad
        assert_rounds_to(dw, operand["wgrad", "g"].t(), operand["wgrad", "x"], "dw", to_bf16=False)
    assert context.nonfinite == 0


def check_non_finite(recipe):
    """Each operand made of a tensor with a NaN counts, as in linear.py."""
    counts = []
    for own in (False, True):
        context = RunContext(1)
        context.step = 0
        weight = nn.Parameter(torch.ones(32, 48))
        layer = QuantizedLinear(weight, recipe, name=LAYER, block=3, context=context)
        x = torch.ones(16, 48)
        x[0, 0] = float("nan")
        y = fp8_linear.Fp8Product.apply(x, weight, layer) if own else layer(x)
        y.backward(torch.ones_like(y))
        counts.append(context.nonfinite)
    assert counts[0] == counts[1] > 0, counts


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    square = VARIANTS["12b_fp8"].recipe()
    vectors = square.with_changes({"*.w.blocks": "1d"})
    checks = {
        "square weight blocks": lambda: check_layer(square, (128, 256, 384)),
        "vector weight blocks": lambda: check_layer(vectors, (128, 256, 384)),
        "sizes that are padded": lambda: check_layer(square, (34, 40, 72)),
        "no gradient of the input": lambda: check_layer(square, (16, 128, 48), needs_dx=False),
        "no gradient of the weight": lambda: check_layer(square, (16, 128, 48), needs_dw=False),
        "non-finite input": lambda: check_non_finite(square),
    }
    for name, check in checks.items():
        check()
        print(f"passed {name}", flush=True)
    sys.exit(0)
