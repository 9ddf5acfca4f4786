"""The blocks of any PyTorch model and the linear layers in them: what `apply_recipe` has to know of it.

    blocks = blocks_of(model)                        # a Llama's model.layers.0 to model.layers.31
    apply_recipe(blocks, recipe, context=context)

Section 4.1 of arXiv 2509.25149: what is quantised are the linear layers of the blocks; embeddings, the output head,
norms and all that is no linear layer keep their precision. A model of this project names its layers itself; here they
are found. What cannot be quantised is said: weights in the blocks that belong to no linear layer are logged once and
listed in `left` (fused experts, convolutions), and a layer that is more than `nn.Linear` is an error, because others
may read its weight past its forward pass (`torch.nn.MultiheadAttention` does). `layers_not_called` finds those that a
model bypasses although they are plain. A layer that stands in several places is taken under its first name; one that
two blocks share, or a block and the rest of the model, is an error, since only one of them may be quantised.

Does not: change the model (apply.py), or choose blocks that stay in BF16 (the recipe).
"""

from __future__ import annotations

import fnmatch
import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from repro.experiments.errors import nearest
from repro.recipes.arguments import check_blocks, check_model
from repro.recipes.linear import QuantizedLinear

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Blocks:
    """A model and the linear layers of its blocks, as `apply_recipe` and `read_record` take them.

    Attributes:
        model: what the names are of.
        layers: (qualified name, index of the block), in order.
        left: qualified names of weights in the blocks, of two or more dimensions, that no recipe reaches.
    """

    model: nn.Module
    layers: tuple[tuple[str, int], ...]
    left: tuple[str, ...]

    def quantizable_linears(self) -> list[tuple[str, int, nn.Linear]]:
        """(qualified name, index of the block, layer as it is now), in order."""
        return [(name, block, self.model.get_submodule(name)) for name, block in self.layers]

    def get_submodule(self, target: str) -> nn.Module:
        """The module of that qualified name."""
        return self.model.get_submodule(target)


def blocks_of(model: nn.Module, path: str | None = None, *, skip: Sequence[str] = ()) -> Blocks:
    """Finds a model's blocks and their linear layers.

    Args:
        path: qualified name of what holds the blocks, e.g. "model.layers": their index is the order in it. Default:
            the one `nn.ModuleList` of the model, lists inside of its blocks aside, whose members hold linear layers.
            A block that is listed twice counts once.
        skip: patterns (`*`, `?`) of qualified names of linear layers to leave as they are, e.g. "*.router".

    Raises:
        TypeError: a model that is no module, or patterns that are one string.
        ValueError: no such path, or none or several to choose from (named); a layer derived from `nn.Linear`, or one
            that also stands outside of its block, that is not skipped; a pattern that no linear layer has; blocks
            without a linear layer that is not skipped.
    """
    check_model(model)
    if isinstance(skip, str):
        raise TypeError(f'skip is a list of patterns, not a string: skip=["{skip}"]')
    path = _the_list(model) if path is None else path
    try:
        holder = model.get_submodule(path)
    except AttributeError:
        known = [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
        raise ValueError(f"{type(model).__name__} has no module {path!r}{nearest(path, known)}") from None
    linears = [
        (".".join(filter(None, (path, place, name))), index, module)
        for index, (place, block) in enumerate(holder.named_children())
        for name, module in block.named_modules(remove_duplicate=False)
        if isinstance(module, nn.Linear)
    ]
    all_names = [name for name, _, _ in linears]
    patterned = {name for pattern in skip for name in _matching(pattern, all_names)}
    skipped = {module for name, _, module in linears if name in patterned}
    taken: dict[nn.Linear, list[tuple[str, int]]] = {}
    for name, index, module in linears:
        if module not in skipped:
            taken.setdefault(module, []).append((name, index))
    if not taken:
        raise ValueError(f"{type(model).__name__}: no linear layer in the blocks of {path!r} to quantise")
    places, insides = places_of_linears(model), [{holder, *block.modules()} for block in holder.children()]
    for module, ((name, index), *others) in taken.items():
        remedy = f'to leave it as it is: skip=["{re.sub(r"[.][0-9]+[.]", ".*.", name)}"]'
        if type(module) not in (nn.Linear, QuantizedLinear):
            raise ValueError(
                f"layer {name} is a {type(module).__name__}: what computes with its weight is not known; {remedy}"
            )
        outside = [where for where, other in others if other != index]
        outside += [where for parent, _, where in places[module] if parent not in insides[index]]
        if outside:
            raise ValueError(
                f"layer {name} is also {outside[0]}, outside of its block: give each place an nn.Linear of its own "
                f"(their weights may be one Parameter), or {remedy}"
            )
    layers = tuple(names[0] for names in taken.values())
    weights = {f"{name}.weight" for name, _ in layers}
    left = tuple(
        name
        for name, parameter in holder.named_parameters(prefix=path)
        if parameter.dim() > 1 and name not in weights
    )
    if left:
        kinds = Counter(re.sub(r"\.\d+(?=\.)", ".*", name) for name in left)
        told = ", ".join(f"{kind} ({count})" for kind, count in kinds.items())
        _LOG.warning("weights in the blocks that no recipe reaches, as they are: %s", told)
    return Blocks(model, layers, left)


def places_of_linears(model: nn.Module) -> dict[nn.Linear, list[tuple[nn.Module, str, str]]]:
    """For each linear layer of a model all (module that holds it, attribute there, qualified name)."""
    places: dict[nn.Linear, list[tuple[nn.Module, str, str]]] = {}
    for name, parent in model.named_modules():
        for attribute, child in parent._modules.items():  # named_children would leave out a second name
            if isinstance(child, nn.Linear):
                where = f"{name}.{attribute}" if name else attribute
                places.setdefault(child, []).append((parent, attribute, where))
    return places


def layers_not_called(blocks: Blocks, forward: Callable[[], object]) -> list[str]:
    """Names of the layers that a forward pass does not call: their weights are unused, or read by something else.

    Args:
        forward: runs the model once, in the mode (training or evaluation) that is asked about.
    """
    check_blocks(blocks)
    called: set[str] = set()
    handles = [
        layer.register_forward_pre_hook(lambda _layer, _x, name=name: called.add(name))
        for name, _, layer in blocks.quantizable_linears()
    ]
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    return [name for name, _ in blocks.layers if name not in called]


def _the_list(model: nn.Module) -> str:
    """The qualified name of the only outermost list of blocks."""
    lists = [name for name, module in model.named_modules() if _holds_blocks(module)]
    outermost = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    if len(outermost) == 1:
        return outermost[0]
    if outermost:
        found, path = f"several lists of blocks ({', '.join(outermost)})", outermost[0]
    else:
        found, path = (
            "no nn.ModuleList of blocks with nn.Linear layers (others, as Conv1D, are not quantised)",
            "layers",
        )
    raise ValueError(
        f'{type(model).__name__} has {found}; say what holds the blocks: blocks_of(model, "{path}")'
    )


def _holds_blocks(module: nn.Module) -> bool:
    """Whether it is a list of modules that hold linear layers."""
    return isinstance(module, nn.ModuleList) and any(
        isinstance(below, nn.Linear) for block in module for below in block.modules() if below is not block
    )


def _matching(pattern: str, names: Sequence[str]) -> list[str]:
    found = fnmatch.filter(names, pattern)
    if not found:
        raise ValueError(
            f"skip: no linear layer of the blocks is called {pattern!r}{nearest(pattern, names)}"
        )
    return found
