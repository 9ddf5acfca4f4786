"""Keeps the context of a run at the step and micro batch of a training loop that knows nothing of it.

    follow_training(context, model, optimizer)       # then train as before

Section 4.4 of arXiv 2509.25149: stochastic rounding is unbiased only if every gradient is rounded with fresh bits. In
a context that nobody moves, each step would round with the bits of the first one.

Does not: resume (set `context.step` to the number of steps that the optimizer has made), or tell ranks apart by
itself (tell it which one this is).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from repro.recipes.arguments import check_model, shown
from repro.recipes.context import RunContext, check_context

#: What takes the hooks of a followed context off; of the context itself, not of its copies.
_STOPS: WeakKeyDictionary[RunContext, Callable[[], None]] = WeakKeyDictionary()


def follow_training(
    context: RunContext,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    rank: int = 0,
    num_ranks: int = 1,
) -> Callable[[], None]:
    """Hooks that number the model's forward passes of each step, and the optimizer's steps.

    Args:
        model: the outermost module that is called once a micro batch; a pass in evaluation mode or without gradients
            does not count. What activation checkpointing runs again is inside of it and does not either.
        optimizer: a call of its `step` ends a step; of several the one that steps last. A step that a
            gradient scaler leaves out does not end; its micro batches and those that follow are numbered on.
        rank, num_ranks: of data parallel training. The micro batches of a step are dealt to the ranks in turn, so no
            two ranks round with the same bits, and all have the same signs of kind "fixed".

    Returns:
        A function that takes the hooks off. Following again in the same context does so too: two pairs of hooks would
        count every step twice.

    Raises:
        TypeError: an argument of another kind, e.g. `blocks_of(model)` in place of the model.
        ValueError: rank is not one of 0 to num_ranks - 1.
    """
    check_context(context)
    check_model(model)
    if not hasattr(optimizer, "register_step_post_hook"):
        raise TypeError(f"optimizer is a torch.optim.Optimizer, not {shown(optimizer)}")
    if not 0 <= rank < num_ranks:
        raise ValueError(f"rank {rank} of {num_ranks}: ranks are 0 to {num_ranks - 1}")
    passes = 0

    def before_forward(module: nn.Module, _inputs: Any) -> None:
        nonlocal passes
        if module.training and torch.is_grad_enabled():
            context.microbatch = rank + num_ranks * passes
            passes += 1

    def after_step(*_: Any) -> None:
        nonlocal passes
        context.step += 1
        passes = 0

    if context in _STOPS:
        _STOPS[context]()
    handles = model.register_forward_pre_hook(before_forward), optimizer.register_step_post_hook(after_step)

    def stop() -> None:
        for handle in handles:
            handle.remove()

    _STOPS[context] = stop
    return stop
