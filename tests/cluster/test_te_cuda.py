"""With Transformer Engine and a GPU: its modules under our quantisers. Skipped where either is missing."""

import importlib.util

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or importlib.util.find_spec("transformer_engine") is None,
        reason="needs a GPU and transformer-engine",
    ),
]
LAYER = "model.layers.3.mixer.in_proj"


def emulated_step(recipe, x, w, gradients):
    """te.Linear under CustomRecipe: outputs and input gradients of each micro batch, the summed weight gradient."""
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import CustomRecipe

    from repro.cluster import quantizers
    from repro.cluster.emulation import Clock

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
        with te.fp8_autocast(enabled=True, fp8_recipe=CustomRecipe(qfactory=quantizers.factory)):
            y = layer(given, is_first_microbatch=number == 0)
        y.backward(g)
        results.append((y.detach(), given.grad))
    return results, layer.weight.grad


def portable_step(recipe, x, w, gradients):
    from repro.recipes.context import RunContext
    from repro.recipes.linear import QuantizedLinear

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


@pytest.mark.parametrize(
    "run", ["12b_nvfp4", "8b_mxfp4", "12b_rht4", "12b_rht128", "12b_signs_per_transform", "12b_sr_dgrad_only",
            "12b_switch_forward_82", "1p2b_rht_fprop", "1p2b_weights_same", "1p2b_activations_different"]
)  # fmt: skip
def test_a_module_of_transformer_engine_computes_what_the_portable_layer_does(segment, run):
    """To the bit: same operands, same product. Two micro batches, so that gradients add up and none is lost."""
    generator = torch.Generator("cuda").manual_seed(0)
    x, w, *gradients = (
        torch.randn(*shape, generator=generator, device="cuda").bfloat16()
        for shape in ((256, 512), (384, 512), (256, 384), (256, 384))
    )
    recipe = segment(run).recipe
    ours, our_sum = emulated_step(recipe, x, w, gradients)
    theirs, their_sum = portable_step(recipe, x, w, gradients)
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        for name, left, right in zip(("y", "dx"), a, b, strict=True):
            assert torch.equal(left, right), f"{run}: {name} of micro batch {number}"
    assert torch.equal(our_sum, their_sum), run
    assert our_sum.abs().sum() > 0
