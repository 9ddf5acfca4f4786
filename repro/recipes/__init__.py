"""A recipe in a model: the quantised linear layer, putting it in place, and the state its layers share.

The data (which operand gets what) is `repro.experiments.recipe`; the arithmetic is `repro.numerics`.
"""

from repro.experiments.recipe import Recipe, load_recipe
from repro.recipes.apply import apply_recipe, read_record, verify_record
from repro.recipes.blocks import Blocks, blocks_of, layers_not_called
from repro.recipes.context import RunContext
from repro.recipes.follow import follow_training
from repro.recipes.linear import QuantizedLinear
from repro.recipes.operands import OperandPlan

__all__ = [
    "Blocks",
    "OperandPlan",
    "QuantizedLinear",
    "Recipe",
    "RunContext",
    "apply_recipe",
    "blocks_of",
    "follow_training",
    "layers_not_called",
    "load_recipe",
    "read_record",
    "verify_record",
]
