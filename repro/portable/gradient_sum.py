"""Sums the gradients of a step's micro batches in their own order, whatever the number of processes.

Floating-point sums depend on their order, and the order of a library's all-reduce on the number of processes, sizes
and links. Here the order is that of one process: ((g_0 + g_1) + g_2) + ..., in FP32. With n processes, process r
works on micro batch j n + r in round j. After each round the gradients change hands so that every process holds all
n of one n-th of the parameters, adds them to its running sum by rank, and after the last round everybody collects
the parts. So a run gives the same numbers, to the bit, on 1, 2 or n devices of one kind, and may go on with another
number of them. Per round this sends as much as half an all-reduce; with one micro batch a process there is one
round, and the whole costs what an all-reduce does.

Memory: one FP32 copy of the gradients, two and 1/n with several processes. Not here: averaging (the loss of a micro
batch carries its share of the batch), overlap with the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from repro.portable.parallel import Ranks


class GradientSum:
    """Owns the flat buffer that `parameter.grad` lives in after a step's last micro batch."""

    def __init__(self, parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
        self._ranks = ranks
        self._is_empty = True
        self._parameters = list(parameters)
        num_values = sum(parameter.numel() for parameter in self._parameters)
        part = -(-num_values // ranks.size)
        self._flat = self._parameters[0].new_zeros(ranks.size * part, requires_grad=False)
        self._views, offset = [], 0
        for parameter in self._parameters:
            self._views.append(self._flat[offset : offset + parameter.numel()].view(parameter.shape))
            offset += parameter.numel()
        if ranks.size > 1:
            self._received = torch.empty_like(self._flat)
            self._sum = self._flat.new_zeros(part)

    @torch.no_grad()
    def end_round(self, gradients: Sequence[Tensor | None]) -> None:
        """Takes the gradients of this round's micro batches (one a process), in the order of the parameters; a
        missing one counts as zero."""
        pairs = zip(self._views, gradients, strict=True)
        views, present = zip(*(pair for pair in pairs if pair[1] is not None), strict=True)
        if self._ranks.size == 1 and not self._is_empty:
            torch._foreach_add_(views, present)
            return
        if len(present) < len(self._views):
            self._flat.zero_()
        torch._foreach_copy_(views, present)
        if self._ranks.size > 1:
            self._exchange()
        self._is_empty = False

    def _exchange(self) -> None:
        self._ranks.exchange(self._received, self._flat)
        for number, part in enumerate(self._received.view(self._ranks.size, -1)):
            if self._is_empty and number == 0:
                self._sum.copy_(part)
            else:
                self._sum.add_(part)

    @torch.no_grad()
    def finish(self) -> None:
        """Leaves the sum of the step in every parameter's `grad`, equal in all processes."""
        if self._ranks.size > 1:
            self._ranks.collect(self._flat, self._sum)
        self._is_empty = True
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.grad = view
