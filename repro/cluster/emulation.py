"""The operands of a linear layer under Transformer Engine (TE), made by repro's own quantisers.

Section 4 of arXiv 2509.25149. TE asks for three quantised tensors a layer, each in two usages, and the six operands
of a recipe are exactly these (T tokens, K input, N output features):

    TE's tensor      rowwise usage         columnwise usage
    input            fprop.x  [T, K]       wgrad.x  [T, K]
    weight           fprop.w  [N, K]       dgrad.w  [N, K]
    grad_output      dgrad.g  [T, N]       wgrad.g  [T, N]

Each is made from the same high-precision tensor, by the same code as in the portable trainer (repro.recipes,
repro.numerics), so both backends compute the same operands. Random bits and signs are functions of (run seed, step,
micro batch, layer, GEMM, operand). The number of a micro batch is counted here, call by call: in a pipeline the
backward pass of one runs after the forward pass of the next, in the same order.

Differences to the portable trainer: a weight is quantised from its BF16 copy, once a step; q, k and v are one layer
with one tensor scale; a micro batch's weight gradient leaves in the dtype TE asks for (BF16), not FP32.

Not here: TE's classes (repro.cluster.quantizers). Needs torch, neither TE nor megatron.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from repro.experiments.recipe import Recipe
from repro.numerics.operand import Operand
from repro.recipes.context import RunContext
from repro.recipes.operands import OperandPlan, make_pair, pays_as_pair
from repro.recipes.product import operand_product

#: TE's name of a tensor -> (repro's name, GEMM of the rowwise usage, GEMM of the columnwise usage).
USAGES: dict[str, tuple[str, str, str]] = {
    "input": ("x", "fprop", "wgrad"),
    "weight": ("w", "fprop", "dgrad"),
    "grad_output": ("g", "dgrad", "wgrad"),
}


class Clock:
    """Where the run is: step, and for each tensor of each layer the micro batch whose turn it is.

    `replica` of `replicas` (data parallel): the k-th call on replica r is micro batch k x replicas + r of the step,
    as the samples are dealt out, so that equal tensors on two GPUs get different noise.
    """

    def __init__(self, run_seed: int, *, replica: int = 0, replicas: int = 1) -> None:
        self.context = RunContext(run_seed)
        self._replica, self._replicas = replica, replicas
        self._calls: dict[tuple[str, str], int] = {}
        self._now: tuple[int, bool] = (0, True)

    def begin(self, step: int, *, training: bool) -> None:
        """Says before each forward pass which step runs; validation draws its own streams (negative numbers)."""
        if (step, training) != self._now:
            self._now = (step, training)
            self._calls.clear()
            if step != self.context.step:
                self.context.step = step

    def enter(self, layer: str, tensor: str) -> RunContext:
        """The context, set to the micro batch of this call."""
        calls = self._calls.get((layer, tensor), 0)
        self._calls[layer, tensor] = calls + 1
        number = calls * self._replicas + self._replica
        self.context.microbatch = number if self._now[1] else -1 - number
        return self.context


@dataclass(frozen=True)
class Pair:
    """The two operands made from one tensor; None where the usage was not asked for."""

    rowwise: Operand | None
    columnwise: Operand | None


class OperandMaker:
    """Makes the operands of one tensor of one layer."""

    def __init__(self, recipe: Recipe, tensor_type: str, *, layer: str, clock: Clock) -> None:
        """`tensor_type`: a key of USAGES; `layer`: its name in the record, part of its random streams."""
        self.tensor, rowwise_gemm, columnwise_gemm = USAGES[tensor_type]
        self.layer, self._clock = layer, clock
        self.rowwise, self.columnwise = (
            OperandPlan(recipe.rule(gemm, self.tensor), layer=layer, gemm=gemm, operand=self.tensor)
            for gemm in (rowwise_gemm, columnwise_gemm)
        )
        self._shared = self.tensor == "w" and recipe.same_representation("w")

    def make(self, original: Tensor, *, rowwise: bool, columnwise: bool) -> Pair:
        """`original` [rows, columns] in BF16 (weights also FP32); on a GPU both operands come from one pass."""
        context = self._clock.enter(self.layer, self.tensor)
        if self._shared:
            operand = self._make(self.rowwise, original, context)
            return Pair(operand if rowwise else None, operand if columnwise else None)
        if rowwise and columnwise and pays_as_pair(self.rowwise, self.columnwise, original, context):
            signs = tuple(
                self._signs(plan, context, original.device) for plan in (self.rowwise, self.columnwise)
            )
            return Pair(*make_pair(self.rowwise, self.columnwise, original, context, signs))
        return Pair(
            self._make(self.rowwise, original, context) if rowwise else None,
            self._make(self.columnwise, original, context) if columnwise else None,
        )

    def describe(self) -> list[dict[str, str | int]]:
        """The two lines of the precision record that this maker answers for, without layer and block."""
        return [self.rowwise.describe(), self.columnwise.describe()]

    def _make(self, plan: OperandPlan, original: Tensor, context: RunContext) -> Operand:
        return plan.make(original, context, self._signs(plan, context, original.device))

    def _signs(self, plan: OperandPlan, context: RunContext, device: torch.device) -> Tensor | None:
        if not plan.hadamard:
            return None
        return context.signs(plan.hadamard, plan.signs, self.layer, plan.gemm, device)


def multiply(gemm: str, first: Operand, second: Operand, *, out_dtype: torch.dtype) -> Tensor:
    """One product of a linear layer, accumulated in FP32, rounded once to `out_dtype`: the portable layer's own.

    fprop: x [T, K], w [N, K] -> [T, N]. dgrad: g [T, N], w [N, K] -> [T, K]. wgrad: g [T, N], x [T, K] -> [N, K].
    """
    a, b = first.values, second.values
    left, right = {"fprop": (a, b.t()), "dgrad": (a, b), "wgrad": (a.t(), b)}[gemm]
    return operand_product(first, second, left, right, dtype=out_dtype)
