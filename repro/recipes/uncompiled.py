"""The quantised product in a model that somebody compiles: called as it stands, never traced.

torch.compile would trace into the quantisation and make its own kernels of it, which may contract a multiplication
and an addition, or round elsewhere: losses and gradients then differ. So the layer breaks the graph and runs by
itself; what lies between the layers is compiled.

A module of its own because `torch.compiler.disable` imports the compiler, which takes two seconds: only those who
compile pay for it. Does not: decide when (QuantizedLinear.forward).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from repro.recipes.linear import Joined, QuantizedLinear


@torch.compiler.disable(reason="4-bit arithmetic is exact only as it stands")
def product(layer: QuantizedLinear, x: Tensor, joined: Joined | None) -> Tensor:
    """What `layer.forward` gives outside of torch.compile."""
    return layer.product(x, joined)
