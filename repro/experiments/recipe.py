"""The precision recipe: what happens to each operand of each GEMM of a linear layer, as validated data.

Section 4 of arXiv 2509.25149 and its Figure 5. A linear layer y = x w^T has three products:

    fprop  y [T, N] = x [T, K] w [N, K]^T     contracts K    operands x, w
    dgrad dx [T, K] = g [T, N] w [N, K]       contracts N    operands g, w
    wgrad dw [N, K] = g [T, N]^T x [T, K]     contracts T    operands x, g

T tokens, K input features, N output features, g the gradient of y. Each of the six operands has its own
`OperandRule`, and each is quantised from the high-precision tensor (never from a quantised one), so "switch the
forward pass to BF16" or "stochastic rounding on the activations" is a change of one or two fields.

How the paper's variants read, as changes to `configs/recipes/nvfp4.yaml` (a dotted path to a value, `*` stands for
every GEMM or operand that has the rest of the path, "bf16" for an operand or a whole GEMM leaves it unquantised):

    Fig. 4   without 2D scaling          *.w.blocks: 1d
             without RHT                 wgrad.*.hadamard: 0
             without SR                  *.g.rounding: rne
             fewer blocks in BF16        bf16_blocks: {first: 0, last: 4}
    Fig. 7   forward in BF16             fprop: bf16
             backward in BF16            dgrad: bf16, wgrad: bf16, fprop.w.blocks: 1d
             both                        fprop: bf16, dgrad: bf16, wgrad: bf16
    Fig. 8   last four blocks            *.w.blocks: 1d, *.g.rounding: rne, wgrad.*.hadamard: 0 (= base of 9, 10, 11)
             + 2D                        *.g.rounding: rne, wgrad.*.hadamard: 0
             + 2D + RHT                  *.g.rounding: rne
             + 2D + RHT + SR             (none)
    Fig. 10  base, then SR on            gradients    *.g.rounding: sr
                                         backward     dgrad.*.rounding: sr, wgrad.*.rounding: sr
                                         activations  *.x.rounding: sr
                                         weights      *.w.rounding: sr
    Fig. 11  base, then RHT on a GEMM    GEMM.*.hadamard: 16, GEMM.*.signs: fixed
    Fig. 12  size of the transform       wgrad.*.hadamard: 4 | 128
    Fig. 13  signs                       wgrad.*.signs: none | per_transform
    Fig. 14  weights only                fprop.x: bf16, dgrad.g: bf16, wgrad: bf16, *.w.blocks: 1d | 1d_shared | 2d
             activations only            fprop.w: bf16, dgrad: bf16, wgrad.g: bf16, wgrad.x.hadamard: 0,
                                         *.x.blocks: 1d | 1d_shared
    E.3      SR in Dgrad only | Wgrad    wgrad.g.rounding: rne | dgrad.g.rounding: rne

Does not: run anything, know a model, choose which switch happens when (a run's segments do), or import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from repro.experiments.dotted import assign
from repro.experiments.errors import read_mapping, validate
from repro.experiments.model import Bf16Blocks
from repro.experiments.operand_rule import OperandRule
from repro.experiments.record import Record

_RECIPES = Path(__file__).parents[2] / "configs" / "recipes"

Gemm = Literal["fprop", "dgrad", "wgrad"]
Tensor = Literal["x", "w", "g"]

#: The operands of each GEMM, in the order in which they stand in the product.
GEMM_OPERANDS: dict[Gemm, tuple[Tensor, Tensor]] = {
    "fprop": ("x", "w"),
    "dgrad": ("g", "w"),
    "wgrad": ("x", "g"),
}


class GemmRules(Record):
    """The two operand rules of one GEMM; "bf16" in place of the pair leaves both unquantised.

    Raises: as OperandRule, and when the two operands differ in Hadamard size or signs: the transform cancels in the
    product only if both sides have the same one.
    """

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        return dict.fromkeys(cls.model_fields, data) if isinstance(data, str) else data

    @model_validator(mode="after")
    def _transform_cancels(self) -> Self:
        (first, a), (second, b) = self.operands
        for key in ("hadamard", "signs"):
            if getattr(a, key) != getattr(b, key):
                raise ValueError(
                    f"{first}.{key} is {getattr(a, key)} but {second}.{key} is {getattr(b, key)}: the transform "
                    "cancels in the product only if both operands have the same size and signs"
                )
        return self

    @property
    def operands(self) -> tuple[tuple[str, OperandRule], tuple[str, OperandRule]]:
        """((name, rule), (name, rule)) in the order of the product."""
        first, second = type(self).model_fields
        return (first, getattr(self, first)), (second, getattr(self, second))


class FpropRules(GemmRules):
    """y = x w^T, contracts the input features K."""

    x: OperandRule
    w: OperandRule


class DgradRules(GemmRules):
    """dx = g w, contracts the output features N."""

    g: OperandRule
    w: OperandRule


class WgradRules(GemmRules):
    """dw = g^T x, contracts the tokens T."""

    x: OperandRule
    g: OperandRule


class Recipe(Record):
    """The precision of every linear layer of a model. Frozen; equal recipes compute equal numbers.

    The base recipes of configs/recipes leave `bf16_blocks` at zero: how many blocks there are, and which shares of
    them the paper keeps in BF16, belongs to the model and the run.
    """

    name: str
    fprop: FpropRules
    dgrad: DgradRules
    wgrad: WgradRules
    bf16_blocks: Bf16Blocks = Bf16Blocks(first=0, last=0)

    def rule(self, gemm: Gemm, operand: Tensor) -> OperandRule:
        """The rule of one operand; KeyError-free for the pairs in GEMM_OPERANDS only."""
        return getattr(getattr(self, gemm), operand)

    def in_bf16(self) -> Recipe:
        """What the blocks kept in BF16 run: the same name and counts, every operand of every GEMM in BF16."""
        return self.with_changes({"fprop": "bf16", "dgrad": "bf16", "wgrad": "bf16"})

    def blocks_in_bf16(self, num_blocks: int) -> frozenset[int]:
        """Indices of the blocks that keep BF16 in a model of `num_blocks` blocks.

        Raises:
            ValueError: more blocks in BF16 than the model has.
        """
        first, last = self.bf16_blocks.first, self.bf16_blocks.last
        if first + last > num_blocks:
            raise ValueError(
                f"recipe {self.name}: bf16_blocks asks for the first {first} and the last {last} blocks in BF16, "
                f"but the model has {num_blocks} blocks"
            )
        return frozenset(range(first)) | frozenset(range(num_blocks - last, num_blocks))

    def same_representation(self, tensor: Tensor) -> bool:
        """Whether both GEMMs that consume `tensor` see the identical quantised values.

        True for a weight with 2D scales (Section 4.3), for scales along one shared dimension and for BF16; never
        with 1-D blocks along each GEMM's own dimension, a transform, different rules, or stochastic rounding (each
        GEMM then draws its own bits).
        """
        first, second = (self.rule(gemm, tensor) for gemm, names in GEMM_OPERANDS.items() if tensor in names)
        if first != second or first.hadamard:
            return False
        return first.format == "bf16" or (first.rounding == "rne" and first.blocks != "1d")

    def with_changes(self, changes: Mapping[str, Any]) -> Recipe:
        """A recipe with some fields replaced; this one stays as it is.

        Args:
            changes: dotted path -> value, applied in order, e.g. {"wgrad.*.hadamard": 4, "fprop": "bf16"}. A segment
                `*` stands for every key under which the rest of the path exists. A mapping or "bf16" as the value
                replaces the whole rule, it is not merged into it.

        Raises:
            TypeError: changes that are no mapping.
            ValueError: a path that does not exist (names the nearest key), or a result that is no valid recipe.
        """
        if not isinstance(changes, Mapping):
            raise TypeError(f'changes are a mapping such as {{"wgrad.*.hadamard": 4}}, not {changes!r:.60}')
        tree = self.model_dump()
        for gemm, operands in GEMM_OPERANDS.items():
            for operand in operands:
                if not tree[gemm][operand]["hadamard"]:
                    tree[gemm][operand]["signs"] = None  # not said, though it reads none
        for path, value in changes.items():
            assign(tree, path, value)
        return validate(Recipe, tree, f"recipe {self.name} with {dict(changes)}")


def load_recipe(path: str | Path) -> Recipe:
    """Reads a recipe: a file, or by its name alone one of this checkout's configs/recipes, e.g. "nvfp4".

    Raises:
        ValueError: no such file, no mapping, or no valid recipe; the message names the file and the key.
    """
    if isinstance(path, str) and path == Path(path).stem:
        path = _RECIPES / f"{path}.yaml"
    return validate(Recipe, read_mapping(Path(path)), path)
