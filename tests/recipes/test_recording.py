"""Random streams in memory: the same bits as the numbers, anew for each micro batch."""

from __future__ import annotations

import pytest
import torch
from recipe_variants import VARIANTS
from torch import Tensor, nn

from repro.recipes import QuantizedLinear, RunContext
from repro.recipes.recording import Recording

CPU = torch.device("cpu")


def layer_of(variant: str) -> QuantizedLinear:
    weight = nn.Parameter(torch.randn(32, 48, generator=torch.Generator().manual_seed(0)))
    return QuantizedLinear(weight, VARIANTS[variant].recipe(), name="a", block=0, context=RunContext(1))


def pass_through(layer: QuantizedLinear) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(128, 48, generator=generator).requires_grad_()
    y = layer(x)
    grads = torch.autograd.grad(y, (x, layer.weight), torch.randn(128, 32, generator=generator))
    return [y.detach(), *grads]


@pytest.mark.parametrize("variant", ["12b_nvfp4", "12b_signs_per_transform", "8b_mxfp4"])
def test_recorded_streams_give_the_bits_of_the_numbers(variant: str) -> None:
    layer = layer_of(variant)
    context, recording = layer.context, Recording(1, CPU)
    seen = []
    for microbatch in range(3):
        context.microbatch = microbatch
        expected = pass_through(layer)
        if microbatch:  # the first pass writes each stream as it is asked for, a replay all of them before
            recording.fill(context)
        with context.recorded_by(recording):
            found = pass_through(layer)
        for one, other in zip(expected, found, strict=True):
            assert torch.equal(one, other), microbatch
        seen.append(found[1])
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


def test_a_replay_without_new_streams_would_repeat_the_old_ones() -> None:
    """What `fill` is for: under a recording the position alone changes nothing."""
    layer, recording = layer_of("12b_nvfp4"), Recording(1, CPU)
    with layer.context.recorded_by(recording):
        first = pass_through(layer)
        layer.context.microbatch = 1
        assert torch.equal(pass_through(layer)[1], first[1])
    recording.fill(layer.context)
    with layer.context.recorded_by(recording):
        assert not torch.equal(pass_through(layer)[1], first[1])


def test_seeds_are_64_bits_in_rows_of_16_bytes() -> None:
    context, recording = RunContext(1), Recording(8, CPU)
    seeds = [recording.seed(context, f"layer {i}", "dgrad", "g") for i in range(40)]
    assert [int(seed) % 2**64 for seed in seeds] == [
        context.derived_seed(f"layer {i}", "dgrad", "g") for i in range(40)
    ]
    assert {(seed.data_ptr() - seeds[0].data_ptr()) % 16 for seed in seeds} == {0}


def test_operands_noted_under_a_recording_are_counted_by_whoever_recorded() -> None:
    context = RunContext(1)
    context.note_amax(torch.tensor(float("inf")))
    with context.recorded_by(Recording(1, CPU)) as amaxes:
        context.note_amax(torch.tensor(float("nan")))
    assert len(amaxes) == 1
    assert context.nonfinite == 1
    context.note_nonfinite(torch.tensor(2))
    assert context.nonfinite == 3
    context.step = 1
    assert context.nonfinite == 0
