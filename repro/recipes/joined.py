"""The two layers of a feed-forward in fewer passes over memory.

Appendix A of arXiv 2509.25149: a feed-forward layer is down(relu(up(x))^2). A quantised layer reads its input in
order to quantise it, so a squared ReLU can be taken as it reads, in place of a pass that writes h = relu(u)^2 and
one that reads it again; likewise for the gradient of u. With T tokens and F features between the layers:

    forward    u = up(x)  [T, F];  y = down(SquaredRelu(u)):  h is quantised, never stored
    backward   down gives dh = gradient of h;  up quantises SquaredReluGradient(dh, u) = dh * 2 relu(u)

Between the two backward passes the tensor in the place of u's gradient is dh; nobody but up sees it.

Random streams, counts of amaxes and bits are those of the layers called one by one.

Does not: join layers where that gains nothing (a CPU, BF16 blocks, FP8, an observer, no gradients).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from repro.recipes.linear import Joined, QuantizedLinear

_SQUARES_OUTPUT, _SQUARES_INPUT = Joined(squares_output=True), Joined(squares_input=True)


def feed_forward(x: Tensor, up: nn.Linear, down: nn.Linear) -> Tensor | None:
    """down(relu(up(x))^2), x [..., K] in BF16 -> [..., K] in BF16; None where the layers should be called one by one.

    Kept for the backward pass are u, and of x and h the operands of Wgrad: what the layers themselves keep.
    """
    trains = (
        torch.is_grad_enabled()
        and x.requires_grad
        and all(isinstance(layer, QuantizedLinear) and layer.weight.requires_grad for layer in (up, down))
    )
    if not (trains and x.dtype == torch.bfloat16 and down.pairs_x(x) and up.pairs_g(x)):
        return None
    return down(up(x, _SQUARES_OUTPUT), _SQUARES_INPUT)
