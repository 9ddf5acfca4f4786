"""Random streams: stochastic rounding and signs are pure functions of what they are for, and SR has no bias."""

from __future__ import annotations

import pytest
import torch
from recipe_variants import RECIPES, VARIANTS
from torch import Tensor, nn

from repro.experiments.recipe import Recipe, load_recipe
from repro.numerics import BLOCK_FORMATS
from repro.recipes import QuantizedLinear, RunContext

FULL = load_recipe(RECIPES / "nvfp4.yaml")
SR_EVERYWHERE = FULL.with_changes({"*.*.rounding": "sr", "*.w.blocks": "1d", "wgrad.*.hadamard": 0})
#: Square: x, w and g can be one and the same tensor, so that only the random bits can tell operands apart.
SIZE = 64


def halfway() -> Tensor:
    """[SIZE, SIZE]: each block of 16 in either direction has amax 6; every other value is midway between codes."""
    return torch.where(torch.eye(16).bool(), 6.0, 2.5).repeat(SIZE // 16, SIZE // 16)


def operands(
    recipe: Recipe, *, name: str = "a", run_seed: int = 1, step: int = 0, microbatch: int = 0
) -> dict[str, Tensor]:
    """Values of the operands of one layer whose x, w and g are the same tensor."""
    seen: dict[str, Tensor] = {}

    def observe(layer: str, gemm: str, operand: str, original: Tensor, made, plan) -> None:
        seen[f"{gemm}.{operand}"] = made.values.clone()

    context = RunContext(run_seed, observer=observe)
    context.step, context.microbatch = step, microbatch
    layer = QuantizedLinear(nn.Parameter(halfway()), recipe, name=name, block=0, context=context)
    layer(halfway().requires_grad_()).backward(halfway())
    return seen


def test_trial_20_same_position_gives_the_same_bits() -> None:
    first, second = operands(SR_EVERYWHERE), operands(SR_EVERYWHERE)
    for key in first:
        assert torch.equal(first[key], second[key]), f"{key} is not a function of its seed"


@pytest.mark.parametrize(
    "elsewhere",
    [{"name": "b"}, {"run_seed": 2}, {"step": 1}, {"microbatch": 1}],
    ids=lambda change: next(iter(change)),
)
def test_trial_20_noise_differs_between_layers_runs_steps_and_microbatches(elsewhere: dict) -> None:
    here, there = operands(SR_EVERYWHERE), operands(SR_EVERYWHERE, **elsewhere)
    for key in here:
        _assert_unrelated(here[key], there[key], f"{key} here and with {elsewhere}")


def test_trial_20_noise_differs_between_equal_tensors_of_one_layer() -> None:
    seen = operands(SR_EVERYWHERE)
    keys = list(seen)
    assert len(keys) == 6
    for i, a in enumerate(keys):
        for b in keys[:i]:
            _assert_unrelated(seen[a], seen[b], f"{a} and {b}")


def test_trial_20_noise_differs_between_equal_tiles() -> None:
    for key, values in operands(SR_EVERYWHERE).items():
        tiles = values.reshape(4, 16, 4, 16).permute(0, 2, 1, 3).reshape(16, 16, 16)
        for i in range(16):
            for j in range(i):
                _assert_unrelated(tiles[i], tiles[j], f"tiles {i} and {j} of {key}")


def test_rounding_to_nearest_draws_nothing() -> None:
    rne = FULL.with_changes({"*.g.rounding": "rne"})
    here, there = operands(rne), operands(rne, name="b", run_seed=5, step=9, microbatch=3)
    assert all(torch.equal(here[key], there[key]) for key in here)


def _assert_unrelated(a: Tensor, b: Tensor, what: str) -> None:
    """Midway values round up with probability 1/2 each: half of them differ, within four standard deviations."""
    undecided = halfway()[: a.shape[0], : a.shape[1]] == 2.5
    share = (a != b)[undecided].float().mean().item()
    slack = 4 * 0.5 / undecided.sum().item() ** 0.5
    assert abs(share - 0.5) < slack, f"{what} differ in {share:.3f} of the undecided values, not about half"


# ------------------------------------------------------------------------------------------------------------ signs


def test_fixed_signs_are_one_vector_for_all_layers_and_the_whole_run() -> None:
    one, other = RunContext(1), RunContext(99)
    other.step, other.microbatch = 1234, 3
    cpu = torch.device("cpu")
    first = one.signs(16, "fixed", "a", "wgrad", cpu)
    assert torch.equal(first, other.signs(16, "fixed", "b", "dgrad", cpu))
    assert first.tolist() == [1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1]


@pytest.mark.parametrize("size", [2, 16, 128])
def test_signs_per_transform_differ_between_layers_gemms_steps_and_microbatches(size: int) -> None:
    cpu = torch.device("cpu")
    seen = set()
    positions = [(seed, step, microbatch) for seed in (1, 2) for step in range(8) for microbatch in (0, 1)]
    for seed, step, microbatch in positions:
        context = RunContext(seed)
        context.step, context.microbatch = step, microbatch
        for layer in ("a", "b"):
            for gemm in ("wgrad", "dgrad"):
                signs = context.signs(size, "per_transform", layer, gemm, cpu)
                assert torch.equal(signs, context.signs(size, "per_transform", layer, gemm, cpu))
                assert signs.abs().eq(1).all()
                seen.add(tuple(signs.tolist()))
    # 128 draws: all differ at 128 signs, about 127.9 of 65536 possible ones at 16, and all four occur at 2.
    assert len(seen) >= {2: 4, 16: 126, 128: 128}[size]


def test_both_operands_of_a_gemm_get_the_same_fresh_signs() -> None:
    """Otherwise the transform would not cancel: the product would be noise."""
    recipe = VARIANTS["12b_signs_per_transform"].recipe()
    context = RunContext(1)
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(32, 48, generator=generator))
    layer = QuantizedLinear(weight, recipe, name="a", block=0, context=context)
    x, grad = torch.randn(128, 48, generator=generator), torch.randn(128, 32, generator=generator)
    layer(x).backward(grad)
    plain = grad.t() @ x
    assert ((weight.grad - plain).norm() / plain.norm()).item() < 0.3


# ------------------------------------------------------------------------------------------------------------- bias


def _gradient_errors(rounding: str, num_draws: int) -> dict[str, Tensor]:
    """Projections [draws, 8] of (dx - expected) and (dw - expected) on fixed directions.

    The expectation is the product with the unquantised gradient and the operand that is rounded to nearest. Values of
    g: each block of 16 along either dimension holds the tensor's amax, so that no value is clipped (a block scale
    rounded down clips, which is a bias of the format and not of the rounding).
    """
    generator = torch.Generator().manual_seed(8)
    g = (torch.rand(128, 32, generator=generator) * 2 - 1).bfloat16().float()
    g[::16, :] = 1.0
    g[:, ::16] = -1.0
    x = torch.randn(128, 48, generator=generator).bfloat16().float().requires_grad_()
    weight = nn.Parameter(torch.randn(32, 48, generator=generator))
    recipe = FULL.with_changes({"*.g.rounding": rounding, "wgrad.*.hadamard": 0})
    seen: dict[str, Tensor] = {}

    def observe(layer: str, gemm: str, operand: str, original: Tensor, made, plan) -> None:
        seen[f"{gemm}.{operand}"] = made.values.double() * made.scale.double()

    context = RunContext(31, observer=observe)
    layer = QuantizedLinear(weight, recipe, name="a", block=0, context=context)
    directions = {"dx": torch.randn(8, 128 * 48, generator=generator).double()}
    directions["dw"] = torch.randn(8, 32 * 48, generator=generator).double()
    errors: dict[str, list[Tensor]] = {"dx": [], "dw": []}
    for draw in range(num_draws):
        context.step = draw
        x.grad = weight.grad = None
        layer(x).backward(g)
        exact = {"dx": g.double() @ seen["dgrad.w"], "dw": g.double().t() @ seen["wgrad.x"]}
        for key, ours in (("dx", x.grad), ("dw", weight.grad)):
            errors[key].append(directions[key] @ (ours.double() - exact[key]).reshape(-1))
    return {key: torch.stack(list_) for key, list_ in errors.items()}


def test_stochastic_rounding_gives_unbiased_gradients() -> None:
    """Mean over draws within four standard errors of zero, for 16 projections of dx and dw."""
    for key, errors in _gradient_errors("sr", 200).items():
        z = errors.mean(0) / (errors.std(0) / errors.shape[0] ** 0.5)
        assert z.abs().max() < 4, f"{key} is biased: {z.tolist()} standard errors"


def test_rounding_to_nearest_gives_biased_gradients_by_the_same_measure() -> None:
    """Power of the test above: the error of RNE is far above the standard error that 200 draws of SR leave."""
    spread = {key: errors.std(0) / 200**0.5 for key, errors in _gradient_errors("sr", 50).items()}
    for key, errors in _gradient_errors("rne", 1).items():
        z = errors[0] / spread[key]
        assert z.abs().max() > 6, f"{key}: {z.tolist()}"


def test_random_bits_of_formats_other_than_nvfp4() -> None:
    assert set(BLOCK_FORMATS) >= {"mxfp4"}
    recipe = load_recipe(RECIPES / "mxfp4.yaml").with_changes({"wgrad.*.hadamard": 0})
    here, there = operands(recipe), operands(recipe, step=1)
    assert not torch.equal(here["dgrad.g"], there["dgrad.g"])
    assert not torch.equal(here["wgrad.g"], there["wgrad.g"])
    assert torch.equal(here["wgrad.x"], there["wgrad.x"])
