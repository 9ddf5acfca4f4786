"""Neighbouring layers in fewer passes over memory: the feed-forward, and several layers of one input.

Appendix A of arXiv 2509.25149: a feed-forward layer is down(relu(up(x))^2). A quantised layer reads its input in
order to quantise it, so a squared ReLU can be taken as it reads, in place of a pass that writes h = relu(u)^2 and
one that reads it again; likewise for the gradient of u. With T tokens and F features between the layers:

    forward    u = up(x)  [T, F];  y = down(SquaredRelu(u)):  h is quantised, never stored
    backward   down gives dh = gradient of h;  up quantises SquaredReluGradient(dh, u) = dh * 2 relu(u)

Between the two backward passes the tensor in the place of u's gradient is dh; nobody but up sees it. Query, key and
value projections quantise the same x: where they ask for the same operands, these are made once.

Random streams, counts of amaxes and bits are those of the layers called one by one.

Does not: join layers where that gains nothing (a CPU, BF16 blocks, FP8, an observer, no gradients).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from repro.recipes.linear import Joined, QuantizedLinear, as_matrix

_SQUARES_OUTPUT, _SQUARES_INPUT = Joined(squares_output=True), Joined(squares_input=True)


def feed_forward(x: Tensor, up: nn.Linear, down: nn.Linear) -> Tensor | None:
    """down(relu(up(x))^2), x [..., K] in BF16 -> [..., K] in BF16; None where the layers should be called one by one.

    Kept for the backward pass are u, and of x and h the operands of Wgrad: what the layers themselves keep.
    """
    if not (_trains(x, up, down) and x.dtype == torch.bfloat16 and down.pairs_x(x) and up.pairs_g(x)):
        return None
    return down(up(x, _SQUARES_OUTPUT), _SQUARES_INPUT)


def of_one_input(x: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...] | None:
    """The outputs of layers that take the same x; None where each should be called for itself."""
    if not (_trains(x, *layers) and all(layer.pairs_x(x) for layer in layers)):
        return None
    first, *others = layers
    for gemm in ("fprop", "wgrad"):
        plan = first.plans[gemm][0]
        if not all(plan.is_same_for(other.plans[gemm][0]) for other in others):
            return None
    for layer in layers:
        layer.check_input(x)
    pair = first.make_pair_of_x(as_matrix(x.detach()))
    for layer in others:  # each layer counts its operands, whoever made them
        for operand in pair:
            layer.context.note_amax(operand.amax)
    joined = Joined(pair_of_x=pair)
    return tuple(layer(x, joined) for layer in layers)


def _trains(x: Tensor, *layers: nn.Linear) -> bool:
    """Whether every layer is quantised, and gradients of x and of all weights will be asked for."""
    return (
        torch.is_grad_enabled()
        and x.requires_grad
        and all(isinstance(layer, QuantizedLinear) and layer.weight.requires_grad for layer in layers)
    )
