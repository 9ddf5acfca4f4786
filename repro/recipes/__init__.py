"""A recipe in a model: the quantised linear layer, putting it in place, and the state its layers share.

The data (which operand gets what) is `repro.experiments.recipe`; the arithmetic is `repro.numerics`.
"""

from repro.recipes.apply import apply_recipe, read_record, verify_record
from repro.recipes.context import RunContext
from repro.recipes.linear import QuantizedLinear
from repro.recipes.operands import OperandPlan

__all__ = ["OperandPlan", "QuantizedLinear", "RunContext", "apply_recipe", "read_record", "verify_record"]
