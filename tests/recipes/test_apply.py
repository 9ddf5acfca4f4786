"""A recipe in a whole model: which layers it reaches, what the record says, what a switch does."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from recipe_variants import OPERANDS, RECIPES, VARIANTS, Variant
from torch import Tensor, nn

from repro.experiments.recipe import load_recipe
from repro.recipes import QuantizedLinear, RunContext, apply_recipe, read_record, verify_record

WIDTH = 32


class Toy(nn.Module):
    """Blocks of two linear layers, between an embedding and an output head that no recipe may touch."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.embed = nn.Linear(WIDTH, WIDTH, bias=False)
        self.layers = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH, bias=False) for name in ("up_proj", "down_proj")})
            for _ in range(num_blocks)
        )
        self.lm_head = nn.Linear(WIDTH, WIDTH, bias=False)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) / WIDTH**0.5

    def quantizable_linears(self) -> list[tuple[str, int, nn.Linear]]:
        return [
            (f"layers.{index}.{name}", index, layer)
            for index, block in enumerate(self.layers)
            for name, layer in block.items()
        ]

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.layers:
            x = x + block["down_proj"](torch.relu(block["up_proj"](x)).square())
        return self.lm_head(x)


def fit_into(num_blocks: int, variant: Variant) -> tuple[int, int]:
    """The variant's BF16 blocks at (start, end), cut down to a toy that still has two quantised blocks."""
    return tuple(min(count, (num_blocks - 2) // 2) for count in variant.bf16_blocks)


def recorder(seen: list[dict]) -> Callable[..., None]:
    def observe(layer: str, gemm: str, operand: str, original: Tensor, made, plan) -> None:
        form = plan.format.name if plan.format else "bf16"
        seen.append(
            {
                "layer": layer,
                "gemm": gemm,
                "operand": operand,
                "format": form,
                "quantised": not torch.equal(made.values.float(), original.bfloat16().float()),
            }
        )

    return observe


@pytest.mark.parametrize("name", VARIANTS)
def test_trial_16_record_says_what_runs_in_each_layer(name: str) -> None:
    """The record against the operands' own description of the variant, and against what is observed to run."""
    variant = VARIANTS[name]
    first, last = fit_into(6, variant)
    recipe = variant.recipe().with_changes({"bf16_blocks": {"first": first, "last": last}})
    model, seen = Toy(6), []
    record = apply_recipe(model, recipe, context=RunContext(1, observer=recorder(seen)))
    assert len(record) == 6 * 2 * 6
    for line in record:
        assert set(line) == {
            *("layer", "block", "gemm", "operand", "format", "blocks", "rounding", "hadamard", "signs")
        }
        text = variant.operands[OPERANDS.index((line["gemm"], line["operand"]))]
        if line["block"] < first or line["block"] >= 6 - last or text == "bf16":
            expected = ("bf16", "none", "rne", 0, "none")
        else:
            expected = (variant.base, *_from_text(text, line["gemm"], line["operand"]))
        actual = tuple(line[key] for key in ("format", "blocks", "rounding", "hadamard", "signs"))
        assert actual == expected, f"{line['layer']} {line['gemm']}.{line['operand']}"

    model(torch.randn(128, WIDTH, generator=torch.Generator().manual_seed(2))).sum().backward()
    ran = {(line["layer"], line["gemm"], line["operand"]): line for line in seen}
    assert len(seen) == len(ran) == len(record)
    for line in record:
        observed = ran[line["layer"], line["gemm"], line["operand"]]
        assert observed["format"] == line["format"]
        assert observed["quantised"] == (line["format"] != "bf16"), f"{line} but values say otherwise"


def _from_text(text: str, gemm: str, operand: str) -> tuple[str, str, int, str]:
    blocks, rounding, *transform = text.split()
    if blocks == "shared":
        along_last = (gemm, operand) in {("fprop", "x"), ("fprop", "w"), ("dgrad", "g")}
        blocks = "1d" if along_last else "1d_shared"
    return (
        blocks,
        rounding,
        int(transform[0][1:]) if transform else 0,
        transform[1] if transform else "none",
    )


def test_only_the_layers_the_model_names_are_swapped() -> None:
    model = Toy(3)
    before = dict(model.named_parameters())
    apply_recipe(model, load_recipe(RECIPES / "nvfp4.yaml"), context=RunContext(1))
    swapped = {name for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}
    assert swapped == {name for name, _, _ in model.quantizable_linears()}
    assert type(model.embed) is type(model.lm_head) is nn.Linear
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before), "an optimizer would hold stale weights"


@pytest.mark.parametrize(("first", "last"), [(2, 8), (0, 7), (6, 1)])
def test_trial_18_more_bf16_blocks_than_the_model_has(first: int, last: int) -> None:
    recipe = load_recipe(RECIPES / "nvfp4.yaml").with_changes({"bf16_blocks": {"first": first, "last": last}})
    model = Toy(6)
    with pytest.raises(ValueError, match=rf"first {first} and the last {last} .* the model has 6 blocks"):
        apply_recipe(model, recipe, context=RunContext(1))
    assert not any(isinstance(module, QuantizedLinear) for module in model.modules()), (
        "half a recipe was applied"
    )


def test_every_block_may_be_bf16() -> None:
    recipe = load_recipe(RECIPES / "nvfp4.yaml").with_changes({"bf16_blocks": {"first": 1, "last": 2}})
    record = apply_recipe(Toy(3), recipe, context=RunContext(1))
    assert {line["format"] for line in record} == {"bf16"}


@pytest.mark.parametrize(
    ("key", "value"),
    [("format", "bf16"), ("blocks", "2d"), ("rounding", "rne"), ("hadamard", 0), ("signs", "per_transform")],
)
def test_trial_16_a_record_that_differs_is_an_error_naming_the_layer(key: str, value: str | int) -> None:
    recipe = load_recipe(RECIPES / "nvfp4.yaml").with_changes({"bf16_blocks": {"first": 1, "last": 1}})
    record = apply_recipe(Toy(4), recipe, context=RunContext(1))
    verify_record(record, recipe)
    broken = copy.deepcopy(record)
    line = next(
        line
        for line in broken
        if (line["layer"], line["gemm"], line["operand"]) == ("layers.2.up_proj", "wgrad", "g")
    )
    line[key] = value
    with pytest.raises(
        ValueError, match=rf"layer layers\.2\.up_proj \(block 2\) runs wgrad\.g with {key} {value}"
    ):
        verify_record(broken, recipe)


def test_trial_18_a_layer_that_runs_in_bf16_outside_the_bf16_blocks_is_an_error() -> None:
    recipe = load_recipe(RECIPES / "nvfp4.yaml").with_changes({"bf16_blocks": {"first": 1, "last": 1}})
    more = recipe.with_changes({"bf16_blocks": {"first": 1, "last": 2}})
    record = apply_recipe(Toy(4), more, context=RunContext(1))
    with pytest.raises(
        ValueError, match=r"layer layers\.2\.up_proj .* format bf16, but recipe nvfp4 asks for nvfp4"
    ):
        verify_record(record, recipe)
    with pytest.raises(ValueError, match="the model has 2 blocks"):
        verify_record(record, more, num_blocks=2)


def test_a_record_with_a_missing_operand_is_an_error() -> None:
    recipe = load_recipe(RECIPES / "nvfp4.yaml")
    record = apply_recipe(Toy(2), recipe, context=RunContext(1))
    with pytest.raises(ValueError, match=r"layer layers\.0\.up_proj: the record says nothing about fprop\.x"):
        verify_record(record[1:], recipe)


def test_a_model_without_a_recipe_has_no_record() -> None:
    with pytest.raises(
        ValueError, match=r"layer layers\.0\.up_proj does not run a recipe: it is a plain Linear"
    ):
        read_record(Toy(1))


def test_a_layer_that_does_not_fit_leaves_the_model_as_it_was() -> None:
    model = Toy(2)
    model.layers[1]["down_proj"] = nn.Linear(WIDTH, WIDTH + 8, bias=False)
    recipe = load_recipe(RECIPES / "nvfp4.yaml").with_changes(
        {"dgrad.*.hadamard": 16, "dgrad.*.signs": "fixed", "*.w.blocks": "1d"}
    )
    with pytest.raises(ValueError, match=r"layer layers\.1\.down_proj: .* 40 is no multiple of 16"):
        apply_recipe(model, recipe, context=RunContext(1))
    assert not any(isinstance(module, QuantizedLinear) for module in model.modules()), (
        "half a recipe was applied"
    )


def _instance_forward(layer: nn.Linear) -> None:
    layer.forward = lambda x: nn.functional.linear(x, layer.weight)  # as offloading hooks of accelerate do


def _weight_norm(layer: nn.Linear) -> None:
    with pytest.warns(FutureWarning, match="weight_norm"):
        nn.utils.weight_norm(layer)


@pytest.mark.parametrize("is_quantised", [False, True])
@pytest.mark.parametrize(
    ("held", "hold"),
    [
        ("_forward_hooks", lambda layer: layer.register_forward_hook(print)),
        ("_forward_pre_hooks", lambda layer: layer.register_forward_pre_hook(print)),
        ("_backward_hooks", lambda layer: layer.register_full_backward_hook(print)),
        ("_backward_pre_hooks", lambda layer: layer.register_full_backward_pre_hook(print)),
        ("_state_dict_hooks", lambda layer: layer._register_state_dict_hook(print)),
        ("_load_state_dict_pre_hooks", lambda layer: layer.register_load_state_dict_pre_hook(print)),
        ("forward", _instance_forward),
        ("_forward_pre_hooks, weight_g, weight_v", _weight_norm),
        ("steps", lambda layer: layer.register_buffer("steps", torch.zeros(1))),
        ("adapter.weight", lambda layer: layer.add_module("adapter", nn.Linear(2, 2, bias=False))),
    ],
)
def test_what_a_layer_holds_besides_weight_and_bias_is_not_dropped(held, hold, is_quantised: bool) -> None:
    model, recipe = Toy(2), load_recipe(RECIPES / "nvfp4.yaml")
    if is_quantised:
        apply_recipe(model, recipe, context=RunContext(1))
    before = [layer for _, _, layer in model.quantizable_linears()]
    hold(model.layers[1]["up_proj"])
    with pytest.raises(ValueError, match=rf"layer layers\.1\.up_proj holds {held}[, ].*take it off"):
        apply_recipe(model, recipe, context=RunContext(1))
    assert [layer for _, _, layer in model.quantizable_linears()] == before, "half a recipe was applied"


@pytest.mark.parametrize(
    ("switch", "unquantised"),
    [
        ("12b_switch_forward_82", {"fprop"}),
        ("12b_switch_backward_82", {"dgrad", "wgrad"}),
        ("12b_switch_both_82", {"fprop", "dgrad", "wgrad"}),
    ],
)
def test_trial_17_a_precision_switch_takes_effect_at_its_step(switch: str, unquantised: set[str]) -> None:
    """Seen on the operands of a training loop that switches in its middle, in the same process and optimizer."""
    switch_at = 2
    seen: list[dict] = []
    context = RunContext(1, observer=recorder(seen))
    model = Toy(2)
    before, after = (
        VARIANTS[name].recipe().with_changes({"bf16_blocks": {"first": 0, "last": 0}})
        for name in ("12b_nvfp4", switch)
    )
    record = apply_recipe(model, before, context=context)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(128, WIDTH, generator=torch.Generator().manual_seed(2))
    for step in range(4):
        if step == switch_at:
            record = apply_recipe(model, after, context=context)
        context.step = step
        seen.clear()
        weights = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        loss = model(x).square().mean()
        assert loss.isfinite()
        loss.backward()
        optimizer.step()
        assert len(seen) == 2 * 2 * 6
        for line in seen:
            in_bf16 = step >= switch_at and line["gemm"] in unquantised
            assert line["quantised"] != in_bf16, f"step {step}: {line}"
        assert all(not torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    verify_record(record, after)
    with pytest.raises(ValueError, match="but recipe"):
        verify_record(record, before)


def test_a_switched_model_computes_what_a_model_built_that_way_computes() -> None:
    x = torch.randn(128, WIDTH, generator=torch.Generator().manual_seed(2))
    nvfp4, mxfp4 = (load_recipe(RECIPES / f"{name}.yaml") for name in ("nvfp4", "mxfp4"))
    switched, fresh = Toy(2), Toy(2)
    apply_recipe(switched, nvfp4, context=RunContext(1))
    switched(x).sum().backward()
    switched.zero_grad()
    for model in (switched, fresh):
        apply_recipe(model, mxfp4, context=RunContext(1))
        model(x).sum().backward()
    assert torch.equal(switched(x), fresh(x))
    for (name, a), (_, b) in zip(switched.named_parameters(), fresh.named_parameters(), strict=True):
        assert torch.equal(a.grad, b.grad), name
