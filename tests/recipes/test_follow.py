"""A context that follows a training loop: fresh bits for every micro batch of every step and rank."""

from __future__ import annotations

import pytest
import torch
from recipe_variants import RECIPES
from torch import nn

from repro.recipes import QuantizedLinear, RunContext, follow_training, load_recipe


class Watched(nn.Module):
    """Remembers at which (step, microbatch) each forward pass ran."""

    def __init__(self, context: RunContext) -> None:
        super().__init__()
        self.context, self.weight = context, nn.Parameter(torch.ones(2))
        self.seen: list[tuple[int, int]] = []

    def forward(self) -> torch.Tensor:
        self.seen.append(self.context.moment)
        return self.weight.sum()


def train(model: Watched, optimizer: torch.optim.Optimizer, steps: int, microbatches: int) -> None:
    for _ in range(steps):
        for _ in range(microbatches):
            model().backward()
        optimizer.step()


@pytest.fixture
def watched() -> tuple[RunContext, Watched, torch.optim.Optimizer]:
    context = RunContext(1)
    model = Watched(context)
    return context, model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_each_microbatch_of_each_step_has_its_number(watched) -> None:
    context, model, optimizer = watched
    follow_training(context, model, optimizer)
    train(model, optimizer, steps=2, microbatches=2)
    assert model.seen == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert context.step == 2


def test_ranks_share_the_microbatches_of_a_step_among_them() -> None:
    seen = []
    for rank in range(3):
        context = RunContext(1)
        model = Watched(context)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        follow_training(context, model, optimizer, rank=rank, num_ranks=3)
        train(model, optimizer, steps=1, microbatches=2)
        seen += [microbatch for _, microbatch in model.seen]
    assert sorted(seen) == list(range(6))


def test_evaluation_does_not_count(watched) -> None:
    context, model, optimizer = watched
    follow_training(context, model, optimizer)
    with torch.no_grad():
        model()
    model.eval()()
    model.train()
    model.seen.clear()
    train(model, optimizer, steps=1, microbatches=1)
    assert model.seen == [(0, 0)]


def test_a_resumed_run_goes_on_at_its_step(watched) -> None:
    context, model, optimizer = watched
    context.step = 7
    follow_training(context, model, optimizer)
    train(model, optimizer, steps=2, microbatches=1)
    assert model.seen == [(7, 0), (8, 0)]


def test_it_can_be_stopped(watched) -> None:
    context, model, optimizer = watched
    stop = follow_training(context, model, optimizer)
    train(model, optimizer, steps=1, microbatches=1)
    stop()
    train(model, optimizer, steps=1, microbatches=2)
    assert model.seen == [(0, 0), (1, 0), (1, 0)]


def test_following_again_does_not_count_twice(watched) -> None:
    context, model, optimizer = watched
    for _ in range(2):
        follow_training(context, model, optimizer)
    train(model, optimizer, steps=2, microbatches=2)
    assert model.seen == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert context.step == 2


@pytest.mark.parametrize(("rank", "num_ranks"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_that_is_none_is_an_error(watched, rank: int, num_ranks: int) -> None:
    with pytest.raises(ValueError, match=rf"rank {rank} of {num_ranks}: ranks are 0 to"):
        follow_training(*watched, rank=rank, num_ranks=num_ranks)


@pytest.mark.parametrize("signs", ["fixed", "per_transform"])
def test_two_forward_passes_before_their_backward_passes_round_as_one_after_the_other(signs: str) -> None:
    """Each backward pass draws as of its own forward pass: with other signs than x's, Wgrad would be wrong."""
    recipe = load_recipe(RECIPES / "nvfp4.yaml").with_changes({"wgrad.*.signs": signs})
    generator = torch.Generator().manual_seed(3)
    weight, *inputs = (torch.randn(64, 64, generator=generator) for _ in range(3))

    def gradients(order: str) -> list[torch.Tensor]:
        context = RunContext(1)
        layer = QuantizedLinear(nn.Parameter(weight), recipe, name="layer", block=0, context=context)
        losses, made = [], []
        for microbatch, x in enumerate(inputs):
            context.step, context.microbatch = 5, microbatch
            losses.append(layer(x).square().sum())
            if order == "in turn":
                made.append(torch.autograd.grad(losses[-1], layer.weight)[0])
        if order == "forward first":
            made = [torch.autograd.grad(loss, layer.weight)[0] for loss in losses]
        assert context.moment == (5, 1)
        return made

    for one, other in zip(gradients("in turn"), gradients("forward first"), strict=True):
        assert torch.equal(one, other)
