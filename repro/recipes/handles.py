"""Numbers by which a compiled graph finds the layer that it calls.

A graph takes tensors, and Python values become part of its code. Were a layer's name or number such a value, each
block of a model would be compiled for itself; as a tensor it is an argument, and equal blocks share one graph.

Numbers begin at a random one: a graph that was stored by another process finds no layer here, not a wrong one.
Does not: keep a layer alive.
"""

from __future__ import annotations

import itertools
import secrets
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch
from torch import Tensor

if TYPE_CHECKING:
    from repro.recipes.linear import QuantizedLinear

_NUMBERS = itertools.count(secrets.randbits(62))
_LAYERS: WeakValueDictionary[int, QuantizedLinear] = WeakValueDictionary()


def new_handle(layer: QuantizedLinear) -> Tensor:
    """One int64 on the CPU, so that reading it waits for no device; another one at each call."""
    number = next(_NUMBERS)
    _LAYERS[number] = layer
    return torch.tensor(number, dtype=torch.int64, device="cpu")


def layer_of(handle: Tensor) -> QuantizedLinear:
    """The layer that `new_handle` was called for. Raises RuntimeError where it is gone, or of another process."""
    layer = _LAYERS.get(int(handle))
    if layer is None:
        raise RuntimeError("a compiled graph calls a quantised layer that is gone: compile the model again")
    return layer
