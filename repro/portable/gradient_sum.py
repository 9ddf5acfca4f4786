"""Sums the gradients of a step's micro batches in their own order, whatever the number of processes.

Floating-point sums depend on their order, and the order of a library's all-reduce on the number of processes, sizes
and links. Here the order is that of one process: ((g_0 + g_1) + g_2) + ..., in FP32. With n processes, process r
works on micro batch j n + r in round j. After each round the gradients change hands so that every process holds all
n of one n-th of the parameters, adds them to its running sum by rank, and after the last round everybody collects
the parts. So a run gives the same numbers, to the bit, on 1, 2 or n devices of one kind, and may go on with another
number of them. Per round this sends as much as half an all-reduce; with one micro batch a process there is one
round, and the whole costs what an all-reduce does.

Memory: two FP32 copies of the gradients and 1/n. With one process nothing is done or held: autograd adds by itself.
Not here: averaging (the loss of a micro batch carries its share of the batch), overlap with the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from repro.portable.parallel import Ranks


class GradientSum:
    """Owns the flat buffers that `parameter.grad` lives in when there are several processes."""

    def __init__(self, parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
        self._ranks = ranks
        self._is_empty = True
        if ranks.size == 1:
            return
        self._parameters = list(parameters)
        num_values = sum(parameter.numel() for parameter in self._parameters)
        part = -(-num_values // ranks.size)
        self._flat = self._parameters[0].new_zeros(ranks.size * part, requires_grad=False)
        self._received = torch.empty_like(self._flat)
        self._sum = self._flat.new_zeros(part)
        self._views, offset = [], 0
        for parameter in self._parameters:
            self._views.append(self._flat[offset : offset + parameter.numel()].view(parameter.shape))
            offset += parameter.numel()

    @torch.no_grad()
    def end_round(self) -> None:
        """Takes the gradients of this round's micro batches (one a process); a missing one counts as zero."""
        if self._ranks.size == 1:
            return
        views, gradients = [], []
        for parameter, view in zip(self._parameters, self._views, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                views.append(view)
                gradients.append(parameter.grad)
            parameter.grad = None
        torch._foreach_copy_(views, gradients)
        self._ranks.exchange(self._received, self._flat)
        for part in self._received.view(self._ranks.size, -1):
            if self._is_empty:
                self._sum.copy_(part)
                self._is_empty = False
            else:
                self._sum.add_(part)

    @torch.no_grad()
    def finish(self) -> None:
        """Leaves the sum of the step in every parameter's `grad`, equal in all processes."""
        if self._ranks.size == 1:
            return
        self._ranks.collect(self._flat, self._sum)
        self._is_empty = True
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.grad = view
