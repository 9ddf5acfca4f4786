"""The run's shared state: what is counted, and when the count starts anew."""

from __future__ import annotations

import pytest
import torch
from recipe_variants import RECIPES
from torch import nn

from repro.experiments.recipe import load_recipe
from repro.numerics.hadamard import sign_vector
from repro.recipes import QuantizedLinear, RunContext


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_non_finite_operands_are_counted_per_step(bad: float) -> None:
    context = RunContext(1)
    layer = QuantizedLinear(
        nn.Parameter(torch.randn(32, 48)),
        load_recipe(RECIPES / "nvfp4.yaml"),
        name="a",
        block=0,
        context=context,
    )
    x = torch.randn(32, 48)
    layer(x.clone().requires_grad_()).sum().backward()
    assert context.nonfinite == 0
    context.step = 1
    x[3, 5] = bad
    y = layer(x)
    assert context.nonfinite == 1, "x of fprop"
    y.sum().backward()
    assert context.nonfinite == 2, "x of fprop and of wgrad; reading does not reset"
    assert not y[3].isfinite().any(), "a broken input must not become plausible numbers"
    context.step = 2
    assert context.nonfinite == 0


def test_counting_survives_more_operands_than_are_kept() -> None:
    context = RunContext(1)
    finite, infinite = torch.tensor(1.0), torch.tensor(float("inf"))
    for index in range(20_000):
        context.note_amax(infinite if index % 1000 == 0 else finite)
    assert context.nonfinite == 20
    assert len(context._amaxes) == 0


def test_noting_an_amax_does_no_arithmetic() -> None:
    """On a GPU an operation per operand would be a kernel launch, and reading the number a synchronisation."""
    context = RunContext(1)
    context.note_amax(torch.empty((), device="meta"))  # any arithmetic that needs a value would fail
    assert len(context._amaxes) == 1


def test_shared_signs_are_those_of_their_size_and_kind() -> None:
    """A run may transform its GEMMs in groups of different sizes (Figure 12)."""
    context, device = RunContext(1), torch.device("cpu")
    for size in (16, 4, 128):
        fixed = context.signs(size, "fixed", "a", "wgrad", device)
        assert torch.equal(fixed, sign_vector(size, kind="fixed"))
        assert context.signs(size, "none", "a", "wgrad", device) is None


def test_fresh_signs_of_a_large_transform_do_not_repeat_themselves() -> None:
    """One seed holds 64 signs; the next 64 come from a seed of their own."""
    signs = RunContext(1).fresh_signs(128, "a", "wgrad")
    assert not torch.equal(signs[:64], signs[64:])
