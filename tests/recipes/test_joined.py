"""A feed-forward's joined layers: bits, streams and counts of the layers called one by one, in fewer passes.

Joining pays on a GPU. Here a stand-in for the decision makes it happen on a CPU, with the same operands.
"""

from __future__ import annotations

import pytest
import torch
from joined_cases import HIDDEN, TOKENS, WIDE, OneModule, inputs, kept, nonfinite, pass_through
from torch import Tensor, nn

from repro.models.attention import Attention
from repro.models.ffn import FeedForward
from repro.numerics import SquaredRelu, SquaredReluGradient
from repro.recipes import RunContext, apply, read_record
from repro.recipes.joined import feed_forward

#: Both operands of x and of g are quantised, in formats that are exact in BF16.
PAIRED = (
    "12b_nvfp4",
    "12b_without_2d",
    "12b_without_rht",
    "12b_signs_per_transform",
    "1p2b_sr_activations",
    "8b_mxfp4",
)


@pytest.mark.parametrize("variant", PAIRED)
def test_joined_layers_give_the_bits_and_counts_of_layers_one_by_one(
    variant: str, pairs: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined, joined_amaxes = pass_through(FeedForward, variant)
    num_joined = len(pairs)
    kinds = {type(source) for source in pairs}
    pairs.clear()
    monkeypatch.setattr(apply, "JOINED", {})
    alone, alone_amaxes = pass_through(FeedForward, variant)
    num_alone = len(pairs)
    monkeypatch.undo()
    monkeypatch.setattr(apply, "JOINED", {})
    one_by_one, _ = pass_through(FeedForward, variant)

    for number, (one, two, three) in enumerate(zip(joined, alone, one_by_one, strict=True)):
        assert one.count_nonzero() > 0, number
        assert torch.equal(one, two), number
        assert torch.equal(one, three), number
    assert joined_amaxes == alone_amaxes
    assert num_joined == num_alone == 4
    assert kinds == {Tensor, SquaredRelu, SquaredReluGradient}


def test_joined_layers_keep_no_more_than_layers_one_by_one(
    pairs: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = kept(FeedForward)
    assert pairs
    monkeypatch.setattr(apply, "JOINED", {})
    alone = kept(FeedForward)
    flat = [(TOKENS, *shape[2:]) if len(shape) == 3 else shape for shape in alone]
    assert joined == sorted(flat)
    assert joined.count((TOKENS, WIDE)) == 2, "u, and the operand of relu(u)^2"


def test_an_infinite_activation_is_counted_as_often_as_by_layers_one_by_one(
    pairs: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = nonfinite(FeedForward)
    assert pairs
    monkeypatch.setattr(apply, "JOINED", {})
    assert joined == nonfinite(FeedForward)
    assert joined > 2


@pytest.mark.parametrize(
    "reason",
    [
        "none",
        "no gradients",
        "x needs none",
        "frozen weight",
        "FP32",
        "BF16 rules",
        "FP8",
        "watched",
        "a CPU",
    ],
)
def test_layers_are_joined_only_where_it_pays(
    reason: str, pairs: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason == "a CPU":
        monkeypatch.undo()
    variant = {"BF16 rules": "8b_bf16", "FP8": "12b_fp8"}.get(reason, "12b_nvfp4")
    context = RunContext(7, observer=(lambda *_: None) if reason == "watched" else None)
    ffn = OneModule(FeedForward, variant, context).mixer
    x = inputs()[0].requires_grad_(reason != "x needs none")
    x = x.detach().float().requires_grad_() if reason == "FP32" else x
    if reason == "frozen weight":
        ffn.down_proj.weight.requires_grad_(False)
    with torch.set_grad_enabled(reason != "no gradients"):
        y = feed_forward(x, ffn.up_proj, ffn.down_proj)
    assert (y is None) == (reason != "none")


def test_plain_layers_are_not_joined(pairs: list) -> None:
    x = inputs()[0].requires_grad_()
    layers = [nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(2)]
    assert feed_forward(x, *layers) is None


@pytest.mark.parametrize("kind", [FeedForward, Attention])
def test_tokens_that_do_not_fit_the_transform_are_told_as_by_a_layer(
    kind: type[nn.Module], pairs: list
) -> None:
    model = OneModule(kind, "12b_nvfp4", RunContext(7))
    with pytest.raises(
        ValueError, match=r"layer mixer\.(up|q)_proj: the 16x16 .* wgrad .*tokens \(T\).* 24 is no"
    ):
        model.mixer(torch.ones(1, 24, HIDDEN, dtype=torch.bfloat16, requires_grad=True))
    assert not pairs


@pytest.mark.parametrize("kind", [FeedForward, Attention])
def test_evaluation_makes_nothing_for_wgrad_and_takes_any_number_of_tokens(
    kind: type[nn.Module], pairs: list
) -> None:
    model = OneModule(kind, "12b_nvfp4", RunContext(7))
    with torch.no_grad():
        y = model.mixer(torch.ones(1, 24, HIDDEN, dtype=torch.bfloat16))
    assert y.shape == (1, 24, HIDDEN)
    assert not pairs


@pytest.mark.parametrize("kind", [FeedForward, Attention])
def test_names_and_record_are_those_of_layers_one_by_one(
    kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = OneModule(kind, "12b_nvfp4", RunContext(7))
    hooks = [value for name, value in vars(joined.mixer).items() if name.startswith("joined_")]
    assert hooks == ([feed_forward] if kind is FeedForward else [])
    monkeypatch.setattr(apply, "JOINED", {})
    alone = OneModule(kind, "12b_nvfp4", RunContext(7))
    assert list(joined.state_dict()) == list(alone.state_dict())
    assert read_record(joined) == read_record(alone)
