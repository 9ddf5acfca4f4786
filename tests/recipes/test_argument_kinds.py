"""Arguments of another kind are refused where they are given, in one line that says what to write."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from recipe_variants import RECIPES
from torch import nn

from repro.recipes import (
    RunContext,
    apply_recipe,
    blocks_of,
    follow_training,
    layers_not_called,
    load_recipe,
    read_record,
    verify_record,
)

NVFP4 = load_recipe(RECIPES / "nvfp4.yaml")
WIDTH = 32


def sequence() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


MODEL = sequence()
BLOCKS = blocks_of(MODEL, "")
SGD = torch.optim.SGD(MODEL.parameters())


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: apply_recipe(MODEL, NVFP4, context=RunContext(1)), r"not Sequential: blocks_of\(model\)"),
        (
            lambda: apply_recipe(BLOCKS, "nvfp4", context=RunContext(1)),
            r"not 'nvfp4': load_recipe\(\"configs/",
        ),
        (lambda: apply_recipe(BLOCKS, RECIPES, context=RunContext(1)), r"not PosixPath: load_recipe\("),
        (lambda: apply_recipe(BLOCKS, NVFP4, context=None), r"not None: RunContext\(run_seed\)"),
        (lambda: verify_record([], "nvfp4"), r"not 'nvfp4': load_recipe\("),
        (lambda: NVFP4.with_changes("fprop: bf16"), r"a mapping such as \{.*\}, not 'fprop: bf16'"),
        (lambda: read_record(MODEL), r"not Sequential: blocks_of\(model\)"),
        (lambda: layers_not_called(MODEL, MODEL), r"not Sequential: blocks_of\(model\)"),
        (lambda: blocks_of(BLOCKS), r"model is an nn\.Module, not Blocks; of Blocks it is \.model"),
        (lambda: blocks_of(None), r"model is an nn\.Module, not None"),
        (lambda: blocks_of(MODEL, "", skip="*.router"), r"not a string: skip=\[\"\*\.router\"\]"),
        (lambda: follow_training(RunContext(1), BLOCKS, SGD), r"model is an nn\.Module, not Blocks"),
        (lambda: follow_training(None, MODEL, SGD), r"context is a RunContext, not None"),
        (lambda: follow_training(RunContext(1), MODEL, MODEL), r"a torch\.optim\.Optimizer, not Sequential"),
    ],
)
def test_an_argument_of_another_kind_is_refused_with_what_to_write(call, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        call()
    assert type(MODEL[0]) is nn.Linear
    assert not MODEL._forward_pre_hooks


@pytest.mark.parametrize(
    ("given", "shown"),
    [(None, "None"), (1.5, "1.5"), ("3", "'3'"), (True, "True"), (torch.tensor(3.0), "Tensor")],
)
@pytest.mark.parametrize(
    ("name", "give"),
    [
        ("run_seed", RunContext),
        ("step", lambda value: setattr(RunContext(1), "step", value)),
        ("microbatch", lambda value: setattr(RunContext(1), "microbatch", value)),
    ],
)
def test_what_is_no_integer_is_refused_before_anything_is_drawn(
    name: str, give, given: object, shown: str
) -> None:
    with pytest.raises(TypeError, match=rf"{name} is an integer, not {shown}"):
        give(given)


@pytest.mark.parametrize("three", [np.int64(3), torch.tensor(3)])
def test_integers_of_numpy_and_pytorch_draw_what_pythons_draw(three: object) -> None:
    found = []
    for number in (3, three):
        context = RunContext(number)
        context.step = context.microbatch = number
        model = sequence()
        torch.manual_seed(0)
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        apply_recipe(blocks_of(model, ""), NVFP4, context=context)
        model(torch.ones(16, WIDTH)).square().sum().backward()
        found.append(model[0].weight.grad)
        assert type(context.run_seed) is type(context.step) is type(context.microbatch) is int
    assert torch.equal(*found)
