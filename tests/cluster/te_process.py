"""te.Linear under CustomRecipe with our quantisers against the portable layer, for each run named as an argument.

Prints one JSON object: run -> what differs. In a process of its own: Transformer Engine cannot be loaded where
PyTorch has loaded another cuDNN, nor may it be loaded before tests of what has to come before.
"""

import json
import sys

import torch
import transformer_engine.pytorch as te
import without_gpu
from transformer_engine.common.recipe import CustomRecipe

from repro.cluster import quantizers
from repro.cluster.emulation import Clock
from repro.experiments import load
from repro.recipes.context import RunContext
from repro.recipes.linear import QuantizedLinear

LAYER = "model.layers.3.mixer.in_proj"


def emulated_step(recipe, x, w, gradients):
    """te.Linear under CustomRecipe: outputs and input gradients of each micro batch, the summed weight gradient."""
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
        with te.autocast(enabled=True, recipe=CustomRecipe(qfactory=quantizers.factory)):
            y = layer(given, is_first_microbatch=number == 0)
        y.backward(g)
        results.append((y.detach(), given.grad))
    return results, layer.weight.grad


def portable_step(recipe, x, w, gradients):
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


def differences(recipe):
    """What is not equal to the bit, over two micro batches, so that gradients add up and none is lost."""
    generator = torch.Generator().manual_seed(0)
    x, w, *gradients = (
        torch.randn(*shape, generator=generator).bfloat16().cuda()
        for shape in ((256, 512), (384, 512), (256, 384), (256, 384))
    )
    ours, our_sum = emulated_step(recipe, x, w, gradients)
    theirs, their_sum = portable_step(recipe, x, w, gradients)
    found = [
        f"{name} of micro batch {number}"
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True))
        for name, left, right in zip(("y", "dx"), a, b, strict=True)
        if not torch.equal(left, right)
    ]
    if not torch.equal(our_sum, their_sum):
        found.append("summed dw")
    return found if our_sum.abs().sum() > 0 else [*found, "no gradient at all"]


if __name__ == "__main__":
    without_gpu.replace_kernels()
    plan = load("paper")
    print(json.dumps({run: differences(plan.run(run).recipe) for run in sys.argv[1:]}))
