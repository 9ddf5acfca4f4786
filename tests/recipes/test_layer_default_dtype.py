"""A layer computes the same whatever torch.set_default_dtype says."""

from __future__ import annotations

import pytest
import torch
from recipe_variants import RECIPES
from torch import Tensor, nn

from repro.experiments.recipe import load_recipe
from repro.numerics.hadamard import scale_factors
from repro.recipes import QuantizedLinear, RunContext
from repro.recipes.product import _one


@pytest.fixture
def bf16_by_default():
    """Whose entry and exit forget what was worked out under another default dtype."""
    before = torch.get_default_dtype()
    for remembered in (scale_factors, _one):
        remembered.cache_clear()
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(before)
    for remembered in (scale_factors, _one):
        remembered.cache_clear()


def step(recipe_name: str) -> tuple[Tensor, Tensor, Tensor]:
    """y, dx and dw of a layer whose Wgrad transforms 32 tokens at a time."""
    generator = torch.Generator().manual_seed(1)
    x, grad, weight = (
        torch.randn(shape, generator=generator, dtype=torch.float32)
        for shape in ((64, 96), (64, 32), (32, 96))
    )
    recipe = load_recipe(RECIPES / f"{recipe_name}.yaml")
    if recipe_name != "bf16":
        recipe = recipe.with_changes({"wgrad.*.hadamard": 32, "wgrad.*.signs": "per_transform"})
    parameter = nn.Parameter(weight)
    layer = QuantizedLinear(parameter, recipe, name="a", block=0, context=RunContext(1))
    y = layer(x.requires_grad_())
    y.backward(grad)
    return y.detach(), x.grad, parameter.grad


@pytest.mark.parametrize("name", ["bf16", "nvfp4", "mxfp4"])
def test_a_layer_is_the_same(name: str, request: pytest.FixtureRequest) -> None:
    expected = step(name)
    request.getfixturevalue("bf16_by_default")
    for what, ours, theirs in zip(("y", "dx", "dw"), step(name), expected, strict=True):
        assert ours.dtype == theirs.dtype, what
        assert torch.equal(ours, theirs), what


def test_a_factor_of_one_has_the_four_bytes_that_a_product_reads(bf16_by_default: None) -> None:
    assert _one(torch.device("cpu")).dtype == torch.float32
