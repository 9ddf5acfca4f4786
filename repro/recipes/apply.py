"""Puts a recipe into a model, and says what the model then really runs.

Section 4.1 of arXiv 2509.25149: the linear layers of the blocks are quantised; those of the first and last
blocks stay in BF16. The model knows nothing of precision: it names its linear layers, and they are swapped here.
Applying another recipe to the same model (a precision switch, Appendix D) swaps them again; weights stay the same
Parameters.

The precision record has one line per operand of each layer, read back from the layers in the model: it is evidence,
where the recipe is intent, and `verify_record` compares the two.

Does not: touch anything but the layers that the model names, or choose the number of BF16 blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import nn

from repro.experiments.operand_rule import OperandRule
from repro.experiments.recipe import GEMM_OPERANDS, Recipe
from repro.recipes.arguments import check_blocks, check_recipe
from repro.recipes.blocks import places_of_linears
from repro.recipes.context import RunContext, check_context
from repro.recipes.joined import feed_forward
from repro.recipes.linear import QuantizedLinear
from repro.recipes.operands import CONTRACTED
from repro.recipes.product import check_fp32_products

#: One line: {layer, block, gemm, operand, format, blocks, rounding, hadamard, signs}.
Record = list[dict[str, str | int]]

#: A hook of the module around the layers, by attribute: what computes several of them in fewer passes over memory.
JOINED = {"joined_layers": feed_forward}


class Quantizable(Protocol):
    """A model that names the linear layers of its blocks, in order: (qualified name, block index, layer)."""

    def quantizable_linears(self) -> list[tuple[str, int, nn.Linear]]: ...

    def get_submodule(self, target: str) -> nn.Module: ...


def apply_recipe(model: Quantizable, recipe: Recipe, *, context: RunContext) -> Record:
    """Swaps the model's linear layers for quantised ones, in place; BF16 ones in the blocks the recipe keeps in BF16.

    Args:
        model: see `Quantizable`; may already carry a recipe, which is replaced. A layer is swapped in all its places.
        recipe: rules and the numbers of BF16 blocks.
        context: shared by all layers; the caller sets its step and microbatch.

    Returns:
        The precision record, already verified against the recipe.

    Raises:
        TypeError: an argument of another kind, e.g. a model in place of its blocks, or a recipe's name.
        ValueError: more BF16 blocks than the model has, a layer that a transform does not fit or that holds more than
            weight and bias, or FP32 products that PyTorch computes in TF32 or BF16. The model then is as it was.
    """
    check_blocks(model)
    check_recipe(recipe)
    check_context(context)
    named = model.quantizable_linears()
    assert named, "a model without quantisable layers"
    bf16_blocks = recipe.blocks_in_bf16(1 + max(block for _, block, _ in named))
    bf16 = recipe.in_bf16()
    for name, _, linear in named:
        _check_replaceable(name, linear)
    for device in {linear.weight.device for _, _, linear in named}:
        check_fp32_products(device)
    layers = [
        QuantizedLinear(
            linear.weight,
            bf16 if block in bf16_blocks else recipe,
            name=name,
            block=block,
            context=context,
            bias=linear.bias,
        ).train(linear.training)
        for name, block, linear in named
    ]
    places = places_of_linears(model.get_submodule(""))
    for (_, _, linear), layer in zip(named, layers, strict=True):
        for parent, attribute, _ in places[linear]:
            setattr(parent, attribute, layer)
            for hook, function in JOINED.items():
                if hasattr(parent, hook):
                    setattr(parent, hook, function)
    record = read_record(model)
    verify_record(record, recipe)
    return record


def _check_replaceable(name: str, linear: nn.Linear) -> None:
    """Raises ValueError where the layer holds what the one in its place would not have: hooks, a forward, tensors."""
    held = [
        key for key, value in vars(linear).items() if key == "forward" or (key.endswith("_hooks") and value)
    ]
    tensors = (*linear.named_parameters(), *linear.named_buffers(), *linear.named_children())
    held += [key for key, _ in tensors if key not in ("weight", "bias")]
    if held:
        raise ValueError(
            f"layer {name} holds {', '.join(held)}, which the layer in its place would not have: take it off before "
            "apply_recipe (hooks can be registered again after it), or skip the layer"
        )


def read_record(model: Quantizable) -> Record:
    """The precision record of a model that carries a recipe, from the layers that its forward pass will call.

    Raises:
        TypeError: a model that doesn't name its layers, as `blocks_of(model)` does.
        ValueError: a layer that the model names is not quantised; the message names it.
    """
    check_blocks(model)
    record: Record = []
    for name, _, _ in model.quantizable_linears():
        layer = model.get_submodule(name)
        if not isinstance(layer, QuantizedLinear):
            raise ValueError(f"layer {name} does not run a recipe: it is a plain {type(layer).__name__}")
        record.extend(layer.describe())
    return record


def verify_record(
    record: Sequence[Mapping[str, Any]], recipe: Recipe, *, num_blocks: int | None = None
) -> None:
    """Compares what runs with what was asked for.

    Args:
        record: as `apply_recipe` returns it, or as a done.json holds it.
        recipe: what was asked for.
        num_blocks: of the model; by default the highest block of the record says it.

    Raises:
        TypeError: a recipe's name in place of the recipe.
        ValueError: the first difference, naming layer, GEMM, operand and field; or a layer without all six operands.
    """
    check_recipe(recipe)
    blocks = num_blocks if num_blocks is not None else 1 + max(int(line["block"]) for line in record)
    bf16_blocks = recipe.blocks_in_bf16(blocks)
    bf16 = recipe.in_bf16()
    seen: dict[str, set[tuple[str, str]]] = {}
    for line in record:
        gemm, operand = line["gemm"], line["operand"]
        asked = bf16 if line["block"] in bf16_blocks else recipe
        expected = _expected(asked.rule(gemm, operand), gemm, operand)
        for key, value in expected.items():
            if line[key] != value:
                raise ValueError(
                    f"layer {line['layer']} (block {line['block']}) runs {gemm}.{operand} with {key} {line[key]}, "
                    f"but recipe {recipe.name} asks for {value}"
                )
        seen.setdefault(line["layer"], set()).add((gemm, operand))
    complete = {(gemm, operand) for gemm, operands in GEMM_OPERANDS.items() for operand in operands}
    for layer, pairs in seen.items():
        for gemm, operand in sorted(complete - pairs):
            raise ValueError(f"layer {layer}: the record says nothing about {gemm}.{operand}")


def _expected(rule: OperandRule, gemm: str, operand: str) -> dict[str, str | int]:
    """A rule in the words of the record: geometry as it runs in this GEMM."""
    blocks: str = rule.blocks
    if rule.format == "bf16":
        blocks = "none"
    elif blocks == "1d_shared" and CONTRACTED[gemm, operand] == 1:
        blocks = "1d"
    return {
        "format": rule.format,
        "blocks": blocks,
        "rounding": rule.rounding,
        "hadamard": rule.hadamard,
        "signs": rule.signs,
    }
