"""The FP8 layer on a GPU: the card's product where there is one, the emulated one where it is asked for."""

from __future__ import annotations

import pytest
import torch
from recipe_variants import VARIANTS
from torch import nn
from watch import LAYER, Watched, watch

from repro.recipes import QuantizedLinear, RunContext

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from repro.numerics.gpu.fp8_product import obstacle

pytestmark = pytest.mark.gpu
RECIPE = VARIANTS["12b_fp8"].recipe()
SHAPES = [(256, 384, 512), (130, 4128, 40)]
card_or_not = pytest.mark.parametrize(
    "emulate",
    [
        True,
        pytest.param(
            False, marks=pytest.mark.skipif(bool(obstacle(torch.device("cuda", 0))), reason="no card")
        ),
    ],
    ids=["emulated", "card"],
)


def run(shown: Watched, *, emulate: bool):
    """(record, y, dx, dw) of the layer with the weight and inputs of one that was watched."""
    context = RunContext(1, emulate_fp8=emulate)
    context.step = 0
    weight = nn.Parameter(shown.layer.weight.detach().clone())
    layer = QuantizedLinear(weight, RECIPE, name=LAYER, block=3, context=context)
    x = shown.x.detach().cuda().bfloat16().requires_grad_()
    y = layer(x)
    y.backward(shown.grad.cuda().bfloat16())
    assert context.nonfinite == 0
    return list(layer.describe()), y.detach(), x.grad, weight.grad


@card_or_not
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_the_operands_of_the_cpu(shape, emulate):
    """Bounds as in tests/numerics: FP32 additions cut at 2^-23, or 4 x 33 terms a block cut at 2^-13 on the card."""
    shown = watch(RECIPE, shape=shape, device="cuda")
    operand = {key: seen.dequantized().cuda() for key, seen in shown.seen.items()}
    record, *results = run(shown, emulate=emulate)
    assert {line["product"] for line in record} == {"emulated" if emulate else "card"}
    factors = (
        (operand["fprop", "x"], operand["fprop", "w"].t()),
        (operand["dgrad", "g"], operand["dgrad", "w"]),
        (operand["wgrad", "g"].t(), operand["wgrad", "x"]),
    )
    for what, ours, (left, right) in zip(("y", "dx", "dw"), results, factors, strict=True):
        assert ours.dtype == (torch.float32 if what == "dw" else torch.bfloat16), what
        exact = left @ right
        unit = (left.shape[1] + 4) * 2.0**-23 if emulate else 4 * 33 * 2.0**-13
        bound = unit * (left.abs() @ right.abs()) + (0.0 if what == "dw" else 2.0**-8) * exact.abs()
        assert ((ours.double() - exact).abs() <= bound).all(), what


@card_or_not
def test_results_repeat_and_a_captured_graph_gives_them(emulate):
    shown = watch(RECIPE, shape=SHAPES[0], device="cuda")
    _, *first = run(shown, emulate=emulate)
    _, *second = run(shown, emulate=emulate)
    context = RunContext(1, emulate_fp8=emulate)
    layer = QuantizedLinear(shown.layer.weight, RECIPE, name=LAYER, block=3, context=context)
    x = shown.x.detach().cuda().bfloat16().requires_grad_()
    grad = shown.grad.cuda().bfloat16()

    def step():
        y = layer(x)
        return y.detach(), *torch.autograd.grad(y, (x, layer.weight), grad)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    for one, other, replayed in zip(first, second, captured, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, replayed)
