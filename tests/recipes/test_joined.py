"""Layers joined with their neighbours: bits, streams and counts of the layers called one by one, in fewer passes.

Joining pays on a GPU. Here a stand-in for the decision makes it happen on a CPU, with the same operands.
"""

from __future__ import annotations

import pytest
import torch
from joined_cases import HIDDEN, TOKENS, WIDE, OneModule, inputs, pass_through
from torch import Tensor, nn

from repro.models.attention import Attention
from repro.models.ffn import FeedForward
from repro.numerics import SquaredRelu, SquaredReluGradient
from repro.recipes import RunContext, apply, linear, operands, read_record
from repro.recipes.joined import feed_forward, of_one_input

#: Both operands of x and of g are quantised, in formats that are exact in BF16.
PAIRED = (
    "12b_nvfp4",
    "12b_without_2d",
    "12b_without_rht",
    "12b_signs_per_transform",
    "1p2b_sr_activations",
    "8b_mxfp4",
)


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Pairs of operands are made as on a GPU; what each was made of."""
    made: list[object] = []

    def pays(first, second, _original, context) -> bool:
        exact = (plan.spec is not None and plan.spec.format.is_exact_in_bf16 for plan in (first, second))
        return context.observer is None and all(exact)

    def make(source, *requests):
        made.append(source)
        return operand_pair(source, *requests)

    operand_pair = operands.make_operand_pair
    monkeypatch.setattr(linear, "pays_as_pair", pays)
    monkeypatch.setattr(operands, "make_operand_pair", make)
    return made


@pytest.mark.parametrize("variant", PAIRED)
@pytest.mark.parametrize("kind", [FeedForward, Attention])
def test_joined_layers_give_the_bits_and_counts_of_layers_one_by_one(
    kind: type[nn.Module], variant: str, pairs: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined, joined_amaxes = pass_through(kind, variant)
    num_joined = len(pairs)
    kinds = {type(source) for source in pairs}
    pairs.clear()
    monkeypatch.setattr(apply, "JOINED", {})
    alone, alone_amaxes = pass_through(kind, variant)
    num_alone = len(pairs)
    monkeypatch.undo()
    monkeypatch.setattr(apply, "JOINED", {})
    one_by_one, _ = pass_through(kind, variant)

    for number, (one, two, three) in enumerate(zip(joined, alone, one_by_one, strict=True)):
        assert one.count_nonzero() > 0, number
        assert torch.equal(one, two), number
        assert torch.equal(one, three), number
    assert joined_amaxes == alone_amaxes
    if kind is FeedForward:
        assert num_joined == num_alone == 4
        assert kinds == {Tensor, SquaredRelu, SquaredReluGradient}
    else:
        drawn_alone = variant in ("12b_signs_per_transform", "1p2b_sr_activations")
        assert (num_joined, num_alone) == (8 if drawn_alone else 6, 8)


@pytest.mark.parametrize("kind", [FeedForward, Attention])
def test_joined_layers_keep_no_more_than_layers_one_by_one(
    kind: type[nn.Module], pairs: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept() -> list[tuple[int, ...]]:
        model, tensors = OneModule(kind, "12b_nvfp4", RunContext(7)), {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: (tensors.update({t.data_ptr(): tuple(t.shape)}), t)[1], lambda t: t
        ):
            model.mixer(inputs()[0].requires_grad_())
        assert pairs
        return sorted(tensors.values())

    joined = kept()
    monkeypatch.setattr(apply, "JOINED", {})
    alone = kept()
    if kind is FeedForward:
        flat = [(TOKENS, *shape[2:]) if len(shape) == 3 else shape for shape in alone]
        assert joined == sorted(flat)
        assert joined.count((TOKENS, WIDE)) == 2, "u, and the operand of relu(u)^2"
    else:
        assert (joined.count((TOKENS, HIDDEN)), alone.count((TOKENS, HIDDEN))) == (1, 3)


def test_an_infinite_activation_is_counted_as_often_as_by_layers_one_by_one(
    pairs: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(kind: type[nn.Module]) -> int:
        context = RunContext(7)
        x = inputs()[0]
        x[0, 0, 0] = float("inf")
        OneModule(kind, "12b_nvfp4", context).mixer(x.requires_grad_()).sum().backward()
        return context.nonfinite

    joined = count(FeedForward), count(Attention)
    assert pairs
    monkeypatch.setattr(apply, "JOINED", {})
    assert joined == (count(FeedForward), count(Attention))
    assert min(joined) > 2


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
    ffn, attention = (OneModule(kind, variant, context).mixer for kind in (FeedForward, Attention))
    x = inputs()[0].requires_grad_(reason != "x needs none")
    x = x.detach().float().requires_grad_() if reason == "FP32" else x
    if reason == "frozen weight":
        ffn.down_proj.weight.requires_grad_(False)
        attention.v_proj.weight.requires_grad_(False)
    with torch.set_grad_enabled(reason != "no gradients"):
        y = feed_forward(x, ffn.up_proj, ffn.down_proj)
        projected = of_one_input(x, attention.q_proj, attention.k_proj, attention.v_proj)
    assert (y is None) == (reason != "none")
    assert (projected is None) == (reason not in ("none", "FP32")), "FP32 storage of BF16 values does as well"


def test_layers_that_transform_their_input_otherwise_are_not_joined(pairs: list) -> None:
    """Each would take the operand of the first: another transform than its own gradient has."""
    variants = ("12b_nvfp4", "12b_rht4")
    one, other = (OneModule(Attention, variant, RunContext(7)).mixer.q_proj for variant in variants)
    x = inputs()[0].requires_grad_()
    assert of_one_input(x, one, one) is not None
    assert of_one_input(x, one, other) is None


def test_plain_layers_are_not_joined(pairs: list) -> None:
    x = inputs()[0].requires_grad_()
    layers = [nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(2)]
    assert feed_forward(x, *layers) is None
    assert of_one_input(x, *layers) is None


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
    assert hooks == [feed_forward if kind is FeedForward else of_one_input]
    monkeypatch.setattr(apply, "JOINED", {})
    alone = OneModule(kind, "12b_nvfp4", RunContext(7))
    assert list(joined.state_dict()) == list(alone.state_dict())
    assert read_record(joined) == read_record(alone)
