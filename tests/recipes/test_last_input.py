"""Layers that take the same input: bits, streams and counts of layers that each quantise it, with fewer passes.

Sharing pays on a GPU. Here a stand-in for the decision makes it happen on a CPU, with the same operands.
"""

from __future__ import annotations

import copy
import gc
import io
from contextlib import nullcontext

import pytest
import torch
from joined_cases import HIDDEN, TOKENS, OneModule, inputs, kept, nonfinite, pass_through
from torch import nn

from repro.models.attention import Attention
from repro.recipes import RunContext, last_input
from repro.recipes.last_input import LastInput
from repro.recipes.recording import Recording

#: Variants, and whether anything is drawn for each layer in the operands of x.
VARIANTS = {
    "12b_nvfp4": False,
    "12b_without_2d": False,
    "12b_without_rht": False,
    "8b_mxfp4": False,
    "12b_signs_per_transform": True,
    "1p2b_sr_activations": True,
}


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on each layer makes its own operands."""
    monkeypatch.setattr(LastInput, "pair_for", lambda *_: None)


def layers(variant: str = "12b_nvfp4", context: RunContext | None = None) -> list[nn.Linear]:
    """Three quantised layers that take HIDDEN features."""
    mixer = OneModule(Attention, variant, context or RunContext(7)).mixer
    return [mixer.q_proj, mixer.k_proj, mixer.v_proj]


@pytest.mark.parametrize("variant", VARIANTS)
def test_layers_of_one_input_give_the_bits_and_counts_of_layers_alone(
    variant: str, pairs: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, shared_amaxes = pass_through(Attention, variant)
    num_shared = len(pairs)
    pairs.clear()
    alone(monkeypatch)
    each, amaxes = pass_through(Attention, variant)
    assert (num_shared, len(pairs)) == (8 if VARIANTS[variant] else 6, 8)
    for number, (one, other) in enumerate(zip(shared, each, strict=True)):
        assert one.count_nonzero() > 0, number
        assert torch.equal(one, other), number
    assert shared_amaxes == amaxes


def test_one_operand_is_kept_for_the_backward_pass(pairs: list, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = kept(Attention)
    alone(monkeypatch)
    each = kept(Attention)
    assert (shared.count((TOKENS, HIDDEN)), each.count((TOKENS, HIDDEN))) == (1, 3)


def test_an_infinite_activation_is_counted_once_a_layer(pairs: list, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = nonfinite(Attention)
    alone(monkeypatch)
    assert shared == nonfinite(Attention) > 2


@pytest.mark.parametrize(
    "between",
    [
        "nothing",
        "a write",
        "other memory",
        "another tensor",
        "the next micro batch",
        "the next step",
        "a copy",
    ],
)
def test_an_input_that_is_not_the_same_any_more_is_quantised_again(between: str, pairs: list) -> None:
    context = RunContext(7)
    one, two, _ = layers(context=context)
    x = inputs()[0]
    one(x)
    if between == "a write":
        x[0, 0, 0] += 1
    elif between == "other memory":  # which PyTorch does not count
        x.data = x + 1
    elif between == "another tensor":
        one(inputs()[0])
    elif between == "the next micro batch":
        context.microbatch += 1
    elif between == "the next step":
        context.step += 1
    made = len(pairs)
    y = two(x.clone() if between == "a copy" else x)
    assert len(pairs) - made == (0 if between == "nothing" else 1)
    assert torch.equal(y, layers()[1](x))


@pytest.mark.parametrize(
    "reason", ["none", "no gradients", "frozen weights", "inference", "BF16 rules", "watched", "captured"]
)
def test_where_nothing_is_shared(reason: str, pairs: list, monkeypatch: pytest.MonkeyPatch) -> None:
    context = RunContext(7, observer=(lambda *_: None) if reason == "watched" else None)
    one, two, _ = layers("8b_bf16" if reason == "BF16 rules" else "12b_nvfp4", context)
    with torch.inference_mode(reason == "inference"):
        x = inputs()[0]
    for layer in (one, two):
        layer.weight.requires_grad_(reason != "frozen weights")
    monkeypatch.setattr(last_input, "_is_captured", lambda _: reason == "captured")
    with torch.no_grad() if reason == "no gradients" else nullcontext():
        first, second = (context.last_input.pair_for(layer, x) for layer in (one, two))
    assert (first is not None) == (second is not None) == (reason == "none")
    assert first is second


def test_operands_of_one_recording_are_shared_in_no_other(
    pairs: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launches that make them are in that graph: another, or nobody who replays none, finds them there."""
    context = RunContext(7)
    one, two, _ = layers(context=context)
    x, device = inputs()[0], torch.device("cpu")
    found = [context.last_input.pair_for(one, x)]
    for is_captured in (False, True, True):
        monkeypatch.setattr(last_input, "_is_captured", lambda _, now=is_captured: now)
        with context.recorded_by(Recording(4, device)):
            found.append(context.last_input.pair_for(one, x))
            assert context.last_input.pair_for(two, x) is found[-1]
    monkeypatch.setattr(last_input, "_is_captured", lambda _: False)
    found.append(context.last_input.pair_for(two, x))
    assert len(set(map(id, found))) == len(found) == 5


def test_a_thread_that_quantises_between_two_looks_changes_nothing(pairs: list) -> None:
    """The last input is read once: another's operands of another tensor are never taken for this one's."""
    context = RunContext(7)
    one, two, _ = layers(context=context)
    x, other = inputs()[0], inputs()[0] + 1
    kept = context.last_input.pair_for(one, x)
    in_between = []

    class Plan:  # asked after the tensor was compared
        def is_same_for(self, _asked: object) -> bool:
            in_between.append(context.last_input.pair_for(one, other))
            return True

    of, at, plans, pair = context.last_input._made
    context.last_input._made = of, at, [Plan(), plans[1]], pair
    assert context.last_input.pair_for(two, x) is kept
    assert in_between[0] is not kept


def test_layers_that_ask_for_another_operand_make_it(pairs: list) -> None:
    """They would take the operand of the first: another transform than their own gradient has."""
    context = RunContext(7)
    (one, *_), (other, *_) = layers("12b_nvfp4", context), layers("12b_rht4", context)
    x = inputs()[0]
    first = context.last_input.pair_for(one, x)
    assert context.last_input.pair_for(one, x) is first
    assert context.last_input.pair_for(other, x) is not first


def test_autocast_hands_the_same_input_to_all(pairs: list, monkeypatch: pytest.MonkeyPatch) -> None:
    """It casts for each layer; what is compared is the tensor before."""
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(3))
    with torch.autocast("cpu", torch.bfloat16):
        shared = [layer(x) for layer in layers()]
    assert len(pairs) == 1
    alone(monkeypatch)
    with torch.autocast("cpu", torch.bfloat16):
        each = [layer(x) for layer in layers()]
    assert all(torch.equal(one, other) for one, other in zip(shared, each, strict=True))


def test_operands_go_with_their_input(pairs: list) -> None:
    context = RunContext(7)
    one, *_ = layers(context=context)
    x = inputs()[0]
    one(x)
    assert context.last_input._made is not None
    del x
    pairs.clear()  # they name what the pairs were made of
    gc.collect()
    assert context.last_input._made is None


def test_a_model_that_has_run_can_be_copied_and_saved(pairs: list) -> None:
    model = OneModule(Attention, "12b_nvfp4", RunContext(7))
    x = inputs()[0]
    y = model.mixer(x)
    for twin in (copy.deepcopy(model), _through_a_file(model)):
        pairs.clear()
        assert torch.equal(twin.mixer(x), y)
        assert pairs, "its own operands"


def _through_a_file(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)
