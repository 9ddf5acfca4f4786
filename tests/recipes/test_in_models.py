"""The recipe inside the project's own models: no linear layer of a block escapes it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recipe_variants import RECIPES
from torch import Tensor, nn

from repro.experiments.model import load_model_spec
from repro.experiments.recipe import load_recipe
from repro.models import build_model
from repro.recipes import QuantizedLinear, RunContext, apply_recipe

MODELS = Path(__file__).parents[2] / "configs" / "models" / "tiny"


@pytest.mark.parametrize("family", ["12b", "8b", "1p2b"])
def test_trial_16_every_linear_layer_runs_all_six_operands(family: str) -> None:
    """A layer whose weight is read past `forward` (a fused kernel, say) would show fewer."""
    spec = load_model_spec(MODELS / f"{family}.yaml")
    model = build_model(spec, seed=0)
    calls: dict[str, list[str]] = {}

    def observe(layer: str, gemm: str, operand: str, original: Tensor, made, plan) -> None:
        kind = plan.format.name if plan.format else "bf16"
        calls.setdefault(layer, []).append(f"{gemm}.{operand} {kind}")

    recipe = load_recipe(RECIPES / "nvfp4.yaml").with_changes({"bf16_blocks": {"first": 1, "last": 2}})
    context = RunContext(1, observer=observe)
    apply_recipe(model, recipe, context=context)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(spec.vocab_size, (2, 64), generator=generator)
    model(tokens).float().square().mean().backward()

    swapped = {name: module for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}
    plain = {name for name, module in model.named_modules() if type(module) is nn.Linear}
    assert plain == {"lm_head"}, "only the output head stays outside the recipe"
    num_blocks = 1 + max(layer.block for layer in swapped.values())
    assert set(calls) == set(swapped)
    for name, layer in swapped.items():
        kind = "bf16" if layer.block in recipe.blocks_in_bf16(num_blocks) else "nvfp4"
        expected = ("fprop.x", "fprop.w", "dgrad.g", "dgrad.w", "wgrad.x", "wgrad.g")
        assert calls[name] == [f"{operand} {kind}" for operand in expected], name
        assert layer.weight.grad.isfinite().all(), name
    assert context.nonfinite == 0


def test_two_equal_steps_of_a_model_are_bit_identical() -> None:
    spec = load_model_spec(MODELS / "1p2b.yaml")
    tokens = torch.randint(spec.vocab_size, (2, 64), generator=torch.Generator().manual_seed(0))
    gradients = []
    for step in (3, 3, 4):
        model, context = build_model(spec, seed=0), RunContext(1)
        apply_recipe(model, load_recipe(RECIPES / "nvfp4.yaml"), context=context)
        context.step = step
        model(tokens).float().square().mean().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    same, again, other = gradients
    assert all(torch.equal(a, b) for a, b in zip(same, again, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(same, other, strict=True)), (
        "the step does not reach the noise"
    )
