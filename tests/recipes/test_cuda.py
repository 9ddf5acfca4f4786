"""The same layer on a GPU: same operands to the bit, BF16 carriers where they are exact."""

from __future__ import annotations

import pytest
import torch
from recipe_variants import RECIPES, VARIANTS
from watch import assert_rounds_to, watch

from repro.experiments.recipe import load_recipe
from repro.recipes import RunContext, apply_recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", VARIANTS)
def test_operands_equal_those_of_the_cpu(name: str) -> None:
    recipe = VARIANTS[name].recipe()
    cpu, gpu = watch(recipe), watch(recipe, device="cuda")
    for (gemm, operand), seen in gpu.seen.items():
        assert torch.equal(seen.values.float(), cpu.seen[gemm, operand].values), f"{gemm}.{operand}"
        exact = recipe.rule(gemm, operand).format in ("bf16", "nvfp4", "mxfp4")
        assert seen.values.dtype == (torch.bfloat16 if exact else torch.float32), f"{gemm}.{operand}"


@pytest.mark.parametrize("name", VARIANTS)
def test_products_are_the_products_of_the_operands_seen(name: str) -> None:
    """Tensor cores cut the aligned products of a group where FP32 would round: a unit of 2^-23, not 2^-24."""
    run = watch(VARIANTS[name].recipe(), device="cuda")
    operand = {key: seen.dequantized() for key, seen in run.seen.items()}
    y = operand["fprop", "x"], operand["fprop", "w"].t()
    dw = operand["wgrad", "g"].t(), operand["wgrad", "x"]
    assert_rounds_to(run.y, *y, "y", to_bf16=True, unit=2.0**-23)
    assert_rounds_to(run.dx, operand["dgrad", "g"], operand["dgrad", "w"], "dx", to_bf16=True, unit=2.0**-23)
    assert_rounds_to(run.dw, *dw, "dw", to_bf16=False, unit=2.0**-23)


def test_tf32_products_are_refused() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj = torch.nn.Linear(32, 32, bias=False, device="cuda")

        def quantizable_linears(self) -> list:
            return [("proj", 0, self.proj)]

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with pytest.raises(ValueError, match="TF32"):
            apply_recipe(Model(), load_recipe(RECIPES / "fp8_block.yaml"), context=RunContext(1))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
