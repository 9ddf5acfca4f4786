"""Blocks and linear layers found in models that know nothing of this project."""

from __future__ import annotations

import logging

import pytest
import torch
from recipe_variants import RECIPES
from torch import Tensor, nn

from repro.recipes import (
    QuantizedLinear,
    RunContext,
    apply_recipe,
    blocks_of,
    layers_not_called,
    load_recipe,
)

WIDTH = 32


class Block(nn.Module):
    """Attention's place is taken by a list of heads: a list of linear layers inside a block."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(WIDTH, WIDTH // 2) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.norm(torch.cat([head(x) for head in self.heads], dim=-1)))


class Stack(nn.Module):
    def __init__(self, num_blocks: int = 3, list_name: str = "h") -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.add_module(list_name, nn.ModuleList(Block() for _ in range(num_blocks)))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.h:
            x = block(x)
        return self.head(x)


def names_of(model: nn.Module, path: str | None = None, **options) -> list[tuple[str, int]]:
    return list(blocks_of(model, path, **options).layers)


def test_the_outermost_list_holds_the_blocks_and_nothing_outside_is_taken() -> None:
    expected = [(f"h.{block}.{name}", block) for block in range(2) for name in ("heads.0", "heads.1", "down")]
    assert names_of(Stack(2)) == expected
    wrapped = nn.Sequential(Stack(2))
    assert names_of(wrapped) == [(f"0.{name}", block) for name, block in expected]


def test_any_container_can_be_named() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    assert names_of(model, "") == [("0", 0), ("2", 2)]
    with pytest.raises(ValueError, match=r"Sequential has no nn\.ModuleList of blocks"):
        blocks_of(model)


def test_several_lists_are_an_error_that_names_them() -> None:
    model = nn.ModuleDict({"encoder": Stack(1), "decoder": Stack(1)})
    with pytest.raises(ValueError, match=r"several lists of blocks \(encoder\.h, decoder\.h\)"):
        blocks_of(model)
    assert names_of(model, "decoder.h")[0] == ("decoder.h.0.heads.0", 0)


def test_a_path_that_is_not_there_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"Stack has no module 'hh'; did you mean 'h'\?"):
        blocks_of(Stack(), "hh")
    with pytest.raises(ValueError, match=r"no linear layer in the blocks of 'h\.0\.norm'"):
        blocks_of(Stack(), "h.0.norm")


def test_skipped_layers_stay_and_a_pattern_without_a_layer_is_an_error() -> None:
    assert [name for name, _ in names_of(Stack(2), skip=["*.heads.*"])] == ["h.0.down", "h.1.down"]
    with pytest.raises(ValueError, match=r"skip: no linear layer of the blocks is called 'h\.0\.up'"):
        blocks_of(Stack(), skip=["h.0.up"])


def test_a_layer_that_is_more_than_linear_is_an_error_that_says_how_to_leave_it() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, batch_first=True), 2)
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn\.out_proj is a NonDynamically") as raised:
        blocks_of(model)
    pattern = str(raised.value).partition('skip=["')[2].partition('"]')[0]
    assert [name for name, _ in names_of(model, skip=[pattern])][:2] == [
        "layers.0.linear1",
        "layers.0.linear2",
    ]


def test_weights_that_no_recipe_reaches_are_listed_and_logged_once_by_kind(caplog) -> None:
    model = Stack(2)
    for block in model.h:
        block.experts = nn.Parameter(torch.zeros(2, WIDTH, WIDTH))
    with caplog.at_level(logging.WARNING):
        blocks = blocks_of(model, skip=["*.down"])
    assert blocks.left == tuple(f"h.{i}.{name}" for i in range(2) for name in ("experts", "down.weight"))
    (line,) = caplog.messages
    assert line.endswith("as they are: h.*.experts (2), h.*.down.weight (2)")


def test_a_model_without_such_weights_logs_nothing(caplog) -> None:
    assert blocks_of(Stack()).left == ()
    assert not caplog.messages


def test_the_last_blocks_stay_in_bf16_and_a_second_recipe_replaces_the_first() -> None:
    model = Stack(12)
    weights = dict(model.named_parameters())
    blocks = blocks_of(model)
    for last in (2, 1):
        recipe = load_recipe(RECIPES / "nvfp4.yaml").with_changes({"bf16_blocks": {"first": 0, "last": last}})
        record = apply_recipe(blocks, recipe, context=RunContext(1))
        in_bf16 = {line["block"] for line in record if line["format"] == "bf16"}
        assert in_bf16 == set(range(12 - last, 12))
    assert type(model.embed) is type(model.head) is nn.Linear
    assert blocks_of(model).layers == blocks.layers
    assert all(weights[name] is weight for name, weight in model.named_parameters())


class Twice(Stack):
    """One layer under two names in each block."""

    def __init__(self) -> None:
        super().__init__(2)
        for block in self.h:
            block.again = block.down

    def forward(self, x: Tensor) -> Tensor:
        for block in self.h:
            x = block(x) + block.again(x)
        return x


def test_a_layer_under_two_names_of_a_block_is_one_quantised_layer_under_both() -> None:
    model = Twice()
    blocks = blocks_of(model)
    for name in ("nvfp4", "mxfp4"):  # a second recipe replaces the first in both places
        record = apply_recipe(blocks, load_recipe(RECIPES / f"{name}.yaml"), context=RunContext(1))
        assert {line["layer"] for line in record} == {name for name, _ in names_of(Stack(2))}
        assert all(isinstance(block.down, QuantizedLinear) and block.again is block.down for block in model.h)
    model(torch.randn(32, WIDTH)).sum().backward()
    assert {name for name, _ in model.named_parameters()} == {name for name, _ in Stack(2).named_parameters()}
    assert names_of(Twice(), skip=["*.again"]) == names_of(Stack(2), skip=["*.down"]), "any of its names"


def share_layer(model: Stack) -> None:
    model.h[1].down = model.h[0].down


def share_module(model: Stack) -> None:
    model.h[1].heads = model.h[0].heads


def lend_layer(model: Stack) -> None:
    model.head = model.h[0].down


@pytest.mark.parametrize(
    ("share", "told", "pattern"),
    [
        (share_layer, r"layer h\.0\.down is also h\.1\.down, outside of its block", "h.*.down"),
        (share_module, r"layer h\.0\.heads\.0 is also h\.1\.heads\.0, outside", "h.*.heads.*"),
        (lend_layer, r"layer h\.0\.down is also head, outside of its block", "h.*.down"),
    ],
)
def test_a_layer_that_two_blocks_or_the_rest_of_the_model_share_is_an_error(share, told, pattern) -> None:
    model = Stack(2)
    share(model)
    with pytest.raises(ValueError, match=told):
        blocks_of(model)
    assert names_of(model, skip=[pattern])


def test_layers_may_share_a_weight_with_each_other_and_with_the_head() -> None:
    model = Stack(2)
    model.head.weight = model.h[1].down.weight = model.h[0].down.weight
    blocks = blocks_of(model)
    assert blocks.left == ()
    record = apply_recipe(blocks, load_recipe(RECIPES / "nvfp4.yaml"), context=RunContext(1))
    assert len({line["layer"] for line in record}) == 6
    assert type(model.head) is nn.Linear
    assert model.head.weight is model.h[1].down.weight is model.h[0].down.weight
    model(torch.randn(16, WIDTH)).sum().backward()
    assert model.head.weight.grad.isfinite().all()


def test_blocks_under_a_second_path_are_the_same_blocks(caplog) -> None:
    model = Stack(2)
    model.h[0].experts = nn.Parameter(torch.zeros(2, WIDTH, WIDTH))
    model.same = model.h
    blocks = blocks_of(model, "same")
    assert blocks.left == ("same.0.experts",)
    apply_recipe(blocks, load_recipe(RECIPES / "nvfp4.yaml"), context=RunContext(1))
    assert isinstance(model.h[0].down, QuantizedLinear)


def test_a_layer_whose_weight_is_read_past_its_forward_pass_is_found() -> None:
    class Bypass(Block):
        def forward(self, x: Tensor) -> Tensor:
            return x + nn.functional.linear(self.heads[0](x).repeat(1, 2), self.down.weight)

    model = Stack(1)
    model.h.append(Bypass())
    blocks = blocks_of(model)
    apply_recipe(blocks, load_recipe(RECIPES / "nvfp4.yaml"), context=RunContext(1))
    x = torch.randn(16, WIDTH)
    assert layers_not_called(blocks, lambda: model(x)) == ["h.1.heads.1", "h.1.down"]
    assert not any(layer._forward_pre_hooks for _, _, layer in blocks.quantizable_linears())
    assert isinstance(model.h[1].down, QuantizedLinear)
