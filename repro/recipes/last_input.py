"""Layers that take the same input one after the other quantise it once.

Section 4 of arXiv 2509.25149 asks for two operands of a layer's input x [T, K]: that of Fprop, and that of Wgrad
(another dimension's blocks, transformed). Query, key and value projections take the same x, as do gate and up of a
gated feed-forward; where they ask for the same operands, which holds unless something is drawn for each layer, the
second layer takes what the first one made. The same input is the same tensor object in the same memory, not written
to since, in the same step and micro batch. PyTorch counts writes, but not those through `.data`, NumPy or DLPack, of
some collectives and of kernels that are given an address: whoever so writes into an input between two layers that
take it hands the second one a copy.

Streams, bits and counts of amaxes are those of layers that each make their own. Kept is one pair of operands, as
long as its tensor lives and no other layer has been called.

Does not: anything where operands are not made in pairs (a CPU, BF16, FP8 by the card's product, an observer), where
no gradient of the weight will be asked for, or in a CUDA graph that somebody else captures (repro.portable.graph's
own share within themselves): its replays change tensors unseen.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from repro.numerics.operand import Operand
    from repro.recipes.linear import QuantizedLinear
    from repro.recipes.operands import OperandPlan


class LastInput:
    """The operands of the input that a layer was given last; one for each run (RunContext)."""

    def __init__(self) -> None:
        #: x, where and when it was quantised, the plans of both operands, these: one tuple, as threads may share it.
        self._made: tuple[weakref.ref[Tensor], tuple, list[OperandPlan], tuple[Operand, Operand]] | None
        self._made = None

    def pair_for(self, layer: QuantizedLinear, x: Tensor) -> tuple[Operand, Operand] | None:
        """The operands of Fprop and Wgrad of the layer's x [..., K]; None where the layer should make what it needs.

        The amaxes are noted for this layer, whoever made the operands.
        """
        context = layer.context
        if (
            not (torch.is_grad_enabled() and layer.weight.requires_grad and layer.pairs_x(x))
            or x.is_inference()
        ):
            return None
        is_captured = _is_captured(x)
        if is_captured and context.recording is None:
            return None
        plans = [layer.plans[gemm][0] for gemm in ("fprop", "wgrad")]
        at = x._version, x.data_ptr(), context.moment, context.recording, is_captured
        if (made := self._made) is not None:
            of, made_at, made_for, pair = made
            if of() is x and made_at == at and all(map(_same, made_for, plans)):
                for operand in pair:
                    context.note_amax(operand.amax)
                return pair
        pair = layer.make_pair_of_x(x.detach())
        self._made = weakref.ref(x, self._forget), at, plans, pair
        return pair

    def __reduce__(self) -> tuple[type[LastInput], tuple[()]]:
        """A copy, or one read from a file, begins with nothing: tensors of the copy are others."""
        return LastInput, ()

    def _forget(self, x: weakref.ref[Tensor]) -> None:
        """Called when a tensor is gone: nobody can be given it again."""
        if (made := self._made) is not None and made[0] is x:
            self._made = None


def _same(made: OperandPlan, asked: OperandPlan) -> bool:
    return made.is_same_for(asked)


def _is_captured(x: Tensor) -> bool:
    """Whether a CUDA graph is being captured on x's device."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()
