"""From an operand rule to the operand that enters a GEMM.

Section 4 and Figure 5 of arXiv 2509.25149. An `OperandPlan` is an `OperandRule` resolved for one operand of one
layer: which format, which tile along which dimension, which rounding, which transform. Plans are built once per
layer; what runs at each step reads plain attributes, and the precision record of a run reads the very same ones.

Tensors keep their own layout, with T tokens, K input and N output features:

    x [T, K]   fprop contracts K (dimension 1), wgrad contracts T (dimension 0)
    w [N, K]   fprop contracts K (dimension 1), dgrad contracts N (dimension 0)
    g [T, N]   dgrad contracts N (dimension 1), wgrad contracts T (dimension 0)

Does not: quantise (repro.numerics), choose rules (a recipe does), or multiply.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal

import torch
from torch import Tensor

from repro.experiments.operand_rule import OperandRule
from repro.numerics.formats import BlockFormat, QuantSpec, Rounding, ScaleOrder, block_format
from repro.numerics.hadamard import transform
from repro.numerics.operand import CopyRequest, Operand, make_operand, make_operand_pair
from repro.numerics.source import Source
from repro.recipes.context import RunContext, Signs

#: The dimension of each tensor, in its own layout, that a GEMM sums over.
CONTRACTED: dict[tuple[str, str], Literal[0, 1]] = {
    ("fprop", "x"): 1,
    ("fprop", "w"): 1,
    ("dgrad", "g"): 1,
    ("dgrad", "w"): 0,
    ("wgrad", "x"): 0,
    ("wgrad", "g"): 0,
}


@functools.cache
def _spec(name: str, is_square: bool, rounding: Rounding, scale_order: ScaleOrder) -> QuantSpec:
    """One object per kind of quantisation and not per layer: kernels keep what they prepare by identity."""
    form = block_format(name)
    tile = form.tiles_2d if is_square else form.tiles_1d
    return QuantSpec(form, tile, rounding=rounding, scale_order=scale_order)


class OperandPlan:
    """One operand of one GEMM of one layer, ready to be made from its original tensor.

    Attributes:
        layer, gemm, operand: where it belongs, e.g. "backbone.layers.0.mixer.in_proj", "wgrad", "g".
        spec: the quantisation, or None for an operand that is only rounded to BF16.
        along: the dimension along which a 1-D block runs and the transform acts.
        hadamard: size of the transform, 0 for none.
        signs: kind of its signs.
    """

    __slots__ = ("along", "gemm", "hadamard", "layer", "operand", "signs", "spec")

    def __init__(self, rule: OperandRule, *, layer: str, gemm: str, operand: str) -> None:
        self.layer = layer
        self.gemm = gemm
        self.operand = operand
        self.hadamard: int = rule.hadamard
        self.signs: Signs = rule.signs
        self.along: Literal[0, 1] = 1 if rule.blocks == "1d_shared" else CONTRACTED[gemm, operand]
        self.spec: QuantSpec | None = None
        if rule.format != "bf16":
            self.spec = _spec(rule.format, rule.blocks == "2d", rule.rounding, rule.scale_order)

    @property
    def format(self) -> BlockFormat | None:
        """The block format; None for BF16."""
        return self.spec.format if self.spec else None

    @property
    def tile(self) -> tuple[int, int] | None:
        """(rows, columns) of a block with `along` as the columns; None for BF16."""
        return self.spec.tile if self.spec else None

    @property
    def rounding(self) -> str:
        """ "rne" or "sr"; BF16 rounds to nearest even."""
        return self.spec.rounding if self.spec else "rne"

    @property
    def blocks(self) -> str:
        """The geometry that runs: "1d" along the contracted dimension, "1d_shared" along the other, "2d", or "none"
        for BF16. A rule "1d_shared" reads "1d" in a GEMM that contracts the shared dimension: it is the same there.
        """
        if self.spec is None:
            return "none"
        if self.spec.tile[0] > 1:
            return "2d"
        return "1d" if self.along == CONTRACTED[self.gemm, self.operand] else "1d_shared"

    def describe(self) -> dict[str, str | int]:
        """This operand's line of the precision record, without layer and block."""
        return {
            "gemm": self.gemm,
            "operand": self.operand,
            "format": self.spec.format.name if self.spec else "bf16",
            "blocks": self.blocks,
            "rounding": self.rounding,
            "hadamard": self.hadamard,
            "signs": self.signs,
        }

    def make(self, original: Tensor, context: RunContext, signs: Tensor | None) -> Operand:
        """The operand of this step.

        Args:
            original: the unquantised tensor, [rows, columns] in its own layout; x and g in BF16, w in BF16 or FP32.
            context: random streams and counters of the run.
            signs: [hadamard] of this GEMM's transform, or None.

        Returns:
            values in the carrier dtype (FP32 on a CPU; on a GPU BF16 where the format is exact in BF16) in the
            layout of `original`, and the FP32 tensor scale to multiply the product with, or None. BF16 has no amax.

        An all-zero tensor gives zeros and a finite scale. Inf or NaN is counted in `context.nonfinite`.
        """
        spec = self.spec
        if spec is None:
            operand = self._make_bf16(original, signs)
        else:
            seed = self._seed(context)
            operand = make_operand(
                original, spec, along=self.along, hadamard=self.hadamard, signs=signs, seed=seed
            )
            operand = self._noted(operand, context)
        if context.observer is not None:
            self.show(original, operand, context)
        return operand

    def request(self, context: RunContext, signs: Tensor | None) -> CopyRequest:
        """What `make` asks for, to be asked together with another plan of the same tensor. Not for BF16."""
        assert self.spec is not None
        return CopyRequest(self.spec, self.along, self.hadamard, signs, self._seed(context))

    def is_same_for(self, other: OperandPlan) -> bool:
        """Whether another layer's plan makes the same operand of the same tensor: nothing is drawn for one layer."""
        return (
            self.spec is other.spec
            and self.rounding == "rne"
            and self.signs != "per_transform"
            and (self.along, self.hadamard, self.signs) == (other.along, other.hadamard, other.signs)
        )

    def _seed(self, context: RunContext) -> int | None:
        is_stochastic = self.spec is not None and self.spec.rounding == "sr"
        return context.seed(self.layer, self.gemm, self.operand) if is_stochastic else None

    def _noted(self, operand: Operand, context: RunContext) -> Operand:
        """The operand, its amax remembered, in the carrier dtype."""
        context.note_amax(operand.amax)
        if operand.values.is_cuda and self.spec.format.is_exact_in_bf16:
            return dataclasses.replace(operand, values=operand.values.to(torch.bfloat16))
        return operand

    def show(self, original: Tensor, operand: Operand, context: RunContext) -> None:
        """Hands an operand that enters this plan's GEMM to the observer, if there is one."""
        if context.observer is not None:
            context.observer(self.layer, self.gemm, self.operand, original, operand, self)

    def _make_bf16(self, original: Tensor, signs: Tensor | None) -> Operand:
        """Rounded once to BF16, after the transform if there is one."""
        values = transform(original, self.hadamard, signs, dim=self.along) if self.hadamard else original
        values = values.detach().to(torch.bfloat16)
        return Operand(values if values.is_cuda else values.float(), None, None)


def make_pair(
    first: OperandPlan,
    second: OperandPlan,
    original: Source,
    context: RunContext,
    signs: tuple[Tensor | None, Tensor | None],
) -> tuple[Operand, Operand]:
    """Two operands of one tensor, as `first.make` and `second.make` give them; on a GPU from one pass over it.

    `original` may be what stands for a tensor and is worked out in that pass (repro.numerics.source). Not for BF16
    operands, and not under an observer (`pays_as_pair`).
    """
    one, other = make_operand_pair(
        original, first.request(context, signs[0]), second.request(context, signs[1])
    )
    return first._noted(one, context), second._noted(other, context)


def pays_as_pair(first: OperandPlan, second: OperandPlan, original: Tensor, context: RunContext) -> bool:
    """Whether two operands of one tensor should be made by `make_pair`: on a GPU, of formats carried in BF16 (the
    second one is kept as long as the BF16 tensor would be), and with nobody watching operands enter their GEMM."""
    return (
        original.is_cuda
        and context.observer is None
        and all(p.spec is not None and p.spec.format.is_exact_in_bf16 for p in (first, second))
    )
