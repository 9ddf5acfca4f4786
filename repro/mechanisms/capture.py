"""Takes the three tensors that meet in each linear layer from one unquantised forward and backward pass.

Letters: T tokens, K input features, N output features of a layer.

    x [T, K] activation (BF16 values)    w [N, K] weight (FP32)    g [T, N] gradient of the output (BF16 values)

The pass runs every layer in BF16, so that each quantity measured on these tensors is the error of that one
quantisation, not of those upstream. Not here: measuring.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from repro.data.training_data import ValidationData
from repro.experiments.recipe import Recipe
from repro.models import LanguageModel
from repro.models.loss import cross_entropy
from repro.recipes.apply import apply_recipe
from repro.recipes.context import RunContext


@dataclass(frozen=True)
class LayerTensors:
    """One linear layer of one pass: its name, its block's index, and x [T, K], w [N, K], g [T, N] in float32."""

    layer: str
    block: int
    x: Tensor
    w: Tensor
    g: Tensor


def held_out_batch(data_dir: Path, frozen: dict[str, Any]) -> Tensor:
    """A fixed batch [B, S + 1] int64 of held-out text, a micro batch of the run, all categories in turn.

    Raises ``ValueError`` naming the file when prepared data are missing or truncated.
    """
    schedule = frozen["schedule"]
    data = ValidationData(data_dir, frozen["data"], schedule, frozen["validation"])
    by_category: dict[str, list[Tensor]] = {}
    for category, tokens in data.batches(1):
        by_category.setdefault(category, []).append(torch.from_numpy(tokens))
    rounds = range(max(map(len, by_category.values())))
    in_turn = [rows[i] for i in rounds for rows in by_category.values() if i < len(rows)]
    return torch.cat(in_turn[: schedule["micro_batch_sequences"]])


def capture(model: LanguageModel, recipe: Recipe, tokens: Tensor, *, seed: int) -> Iterator[LayerTensors]:
    """One BF16 forward and backward pass over ``tokens`` [B, S + 1]; then the layers in the model's order.

    ``recipe`` is any recipe of the model: its BF16 form runs. The model's linear layers stay swapped for those of
    that form; its weights are not changed. Memory beside the weights: x and g of all layers in BF16, what enters each
    block, what one block keeps for its backward pass, one weight's gradient; then one layer at a time in FP32.
    """
    seen: dict[tuple[str, str], Tensor] = {}

    def observe(layer: str, gemm: str, operand: str, original: Tensor, *_: Any) -> None:
        # x enters Fprop and Wgrad, g Dgrad and Wgrad, w Fprop and Dgrad: the same tensor both times.
        seen.setdefault((layer, operand), original.detach())

    context = RunContext(seed, observer=observe)
    apply_recipe(model, recipe.in_bf16(), context=context)
    model.train()
    model.zero_grad(set_to_none=True)
    with _without_weight_gradients(model), _blocks_computed_again(model):
        cross_entropy(model, tokens[:, :-1], tokens[:, 1:]).backward()
    context.observer = None
    for name, block, _ in model.quantizable_linears():
        x, w, g = (seen.pop((name, operand)).float() for operand in ("x", "w", "g"))
        yield LayerTensors(name, block, x=x, w=w, g=g)


@contextmanager
def _without_weight_gradients(model: LanguageModel) -> Iterator[None]:
    """Each weight's gradient is dropped when it is there: nothing is measured on it, and all together are 49 GB of a
    12B model. Asking for none instead would take other ways through the layers.
    """

    def drop(parameter: Tensor) -> None:
        parameter.grad = None

    hooks = [parameter.register_post_accumulate_grad_hook(drop) for parameter in model.parameters()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _blocks_computed_again(model: LanguageModel) -> Iterator[None]:
    """The backward pass computes a block's forward pass again, the same numbers, instead of keeping what it needs."""
    for block in model.model.layers:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
    try:
        yield
    finally:
        for block in model.model.layers:
            del block.forward
