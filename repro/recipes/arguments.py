"""What is refused where a recipe is put into a model: objects of another kind, in one line with what to write.

Does not: look at values (a layer's size, a recipe's blocks), or run in a layer's forward pass.
"""

from __future__ import annotations

import operator

from torch import nn

from repro.experiments.recipe import Recipe


def check_model(model: object) -> None:
    """Raises TypeError for anything but a module of PyTorch."""
    if not isinstance(model, nn.Module):
        remedy = "; of Blocks it is .model" if hasattr(model, "quantizable_linears") else ""
        raise TypeError(f"model is an nn.Module, not {shown(model)}{remedy}")


def check_blocks(blocks: object) -> None:
    """Raises TypeError for what names no linear layers: a model, where its blocks are needed."""
    if not hasattr(blocks, "quantizable_linears"):
        raise TypeError(f"the model's blocks are needed, not {shown(blocks)}: blocks_of(model)")


def check_recipe(recipe: object) -> None:
    """Raises TypeError for anything but a `Recipe`: its name, or the path of its file."""
    if not isinstance(recipe, Recipe):
        raise TypeError(f'recipe is a Recipe, not {shown(recipe)}: load_recipe("configs/recipes/nvfp4.yaml")')


def as_integer(value: object, name: str) -> int:
    """An integer of Python, NumPy or PyTorch as Python's. Raises TypeError for the rest, truth values among it."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is an integer, not {shown(value)}") from None


def shown(value: object) -> str:
    """A value as a message of one line names it: a number or a string as it is, else its type."""
    return f"{value!r:.60}" if isinstance(value, int | float | str | None) else type(value).__name__
