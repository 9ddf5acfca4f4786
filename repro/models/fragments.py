"""Pointwise stretches between the matrix products: plain PyTorch, which a GPU may run as one kernel each.

A small model on a GPU spends its time on memory traffic between the products: a Mamba-2 block has some forty
pointwise passes over its activations, four kernels when each stretch is compiled. What is compiled is the function
as it stands, so there is one text for both; results differ by rounding, as a compiled stretch keeps FP32 until its
end. Off unless `fuse_fragments(True)` was called; never on a CPU, and never without gradients, where batches come in
many shapes and each would be compiled anew.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_fused = False


def fuse_fragments(on: bool) -> None:
    """Switches compiled fragments on or off for the whole process."""
    global _fused
    _fused = on


def is_fusing() -> bool:
    """Whether fragments on a GPU are compiled."""
    return _fused


def fragment(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function of tensors (the first says on which device) and plain numbers, without side effects."""
    compiled: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def run(first: torch.Tensor, *others: Any) -> Any:
        if not (_fused and first.is_cuda and torch.is_grad_enabled()):
            return function(first, *others)
        if not compiled:  # importing the compiler takes seconds: only where it is used
            compiled.append(torch.compile(function, fullgraph=True, dynamic=False))
        return compiled[0](first, *others)

    return run
