"""Tensors that a quantising pass works out while it loads: the squared ReLU of the feed-forward layer, its gradient.

Paper Appendix A: the feed-forward layer is down(relu(u)^2) with u = up(x). Both relu(u)^2 and its gradient are only
ever quantised, so that writing them to memory and reading them again is traffic for nothing.

    SquaredRelu(u)              h  = bf16(relu(u)^2)
    SquaredReluGradient(g, u)   du = bf16(g * 2 relu(u)), and +0 where u <= 0, whatever g is there

Shapes: all [M, N] BF16. `materialise` is the definition of the bits, those of PyTorch's relu(u).square() and of its
backward; a NaN in u stays one. Two significands of 8 bits multiply exactly in FP32, and a product that FP32 has to
round, below 2^-134, is a zero in BF16 either way: "rounded once to BF16" and "computed in FP32, then rounded" are the
same bits.

Does not: quantise (`operand`), or differentiate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import relu


@dataclass(frozen=True)
class SquaredRelu:
    """Stands for relu(value)^2."""

    #: [M, N] BF16
    value: Tensor


@dataclass(frozen=True)
class SquaredReluGradient:
    """Stands for the gradient of relu(value)^2 under the gradient `grad` of its result.

    Raises ValueError where the two differ in shape, dtype or device, TypeError where one is no tensor.
    """

    #: [M, N] BF16
    grad: Tensor
    #: [M, N] BF16
    value: Tensor

    def __post_init__(self) -> None:
        grad, value = self.grad, self.value
        try:
            are_alike = (grad.shape, grad.dtype, grad.device) == (value.shape, value.dtype, value.device)
        except AttributeError:
            kinds = " and ".join(type(t).__name__ for t in (grad, value))
            raise TypeError(f"a gradient and its value are torch tensors; got {kinds}") from None
        if not are_alike:
            raise ValueError(
                "a gradient and its value are alike in shape, dtype and device; got "
                + " and ".join(f"{tuple(t.shape)} {t.dtype} on {t.device}" for t in (grad, value))
            )


Source = Tensor | SquaredRelu | SquaredReluGradient


def materialise(source: Source) -> Tensor:
    """The tensor that `source` stands for, detached; a tensor itself as it is."""
    if isinstance(source, Tensor):
        return source
    value = source.value.detach()
    if isinstance(source, SquaredRelu):
        return relu(value).square()
    slope = 2 * relu(value)
    return torch.where(value <= 0, 0, source.grad.detach() * slope)
