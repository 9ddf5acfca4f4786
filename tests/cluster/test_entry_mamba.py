"""megatron-core's fused Mamba path, which causal-conv1d makes the default, against the path that needs none of it.

Needs what test_entry_point.py needs, and on a GPU causal-conv1d. Without a GPU the fused path is a stand-in that
rounds where the kernels do: that shows whether the test can tell a wrong convolution, not what kernels compute.

    python -m pytest tests/cluster/test_entry_mamba.py
"""

import importlib.util
import sys
from functools import cache

import pytest
import torch
from entry_point import MODEL, PROCESS, layout, note, segment_of
from launched import ON_GPU, finish, start
from safetensors.torch import load_file, save_file
from small import portable

from repro.models import build_model

pytestmark = [
    pytest.mark.skipif(
        sys.version_info < (3, 12)
        or any(importlib.util.find_spec(name) is None for name in ("transformer_engine", "mamba_ssm")),
        reason="needs megatron-core 0.19, transformer-engine and mamba-ssm",
    ),
    pytest.mark.skipif(
        ON_GPU and importlib.util.find_spec("causal_conv1d") is None,
        reason="needs causal-conv1d, whose kernels the fused path calls",
    ),
]
#: Tokens: three of the scan's chunks and six of the convolution kernel's, so that both reach back over an edge.
SEQUENCE, SEQUENCES = 384, 2
PATTERNS = ["M-", MODEL["pattern"]]
#: BF16 values written between embedding and loss: of a layer, with its norm and the sum around it, and of the end.
ROUNDINGS = {"M": 8, "*": 5, "-": 5, "end": 2}
#: Standard deviation of one rounding to BF16 (8 bits), relative.
ROUNDING = 2**-9 / 3**0.5


def segment_with(folder, pattern):
    """As test_entry_point.py's, with longer sequences: every position of the schedule times the longer step."""
    plain = segment_of(folder / "plain", recipe="bf16").schedule
    factor = SEQUENCE * SEQUENCES // portable.STEP_TOKENS
    schedule = {key: value * factor if key.endswith("_tokens") else value for key, value in plain.items()}
    schedule |= {"sequence_length_tokens": SEQUENCE, "batch_sequences": SEQUENCES}
    return segment_of(
        folder / "run",
        recipe="bf16",
        model={**MODEL, "max_sequence_tokens": SEQUENCE, "mamba_num_groups": 2},
        pattern=pattern,
        schedule=schedule,
        validation={"sequences": SEQUENCES, "every_tokens": 5 * SEQUENCE * SEQUENCES},
    )


def draw_weights(spec):
    """As a model begins, but for in_proj, whose outputs are of size 1.3: else D x alone would be seen of the scan."""
    weights = {name: p.detach() for name, p in build_model(spec, seed=3).named_parameters()}
    for name in weights:
        if name.endswith("in_proj.weight"):
            weights[name] *= 1.3 / (spec.init_std * spec.hidden_size**0.5)
    return {name: weight.bfloat16() for name, weight in weights.items()}


def with_a_wrong_weight(weights, channel):
    """One of the first convolution's 3072 weights (on a CPU 768) has the other sign: the largest of `channel`."""
    name = next(name for name in weights if name.endswith("conv1d.weight"))
    wrong = weights[name].clone()
    wrong[channel, 0, wrong[channel, 0].abs().argmax()] *= -1
    return {**weights, name: wrong}


def gradients_of(segment, folder, given):
    """{name: tensors} of "gradients" in a process each; `given`: name -> (weights, Mamba path)."""
    processes = {}
    for name, (weights, path) in given.items():
        save_file(weights, folder / f"{name}.weights")
        words = [
            segment.path,
            folder / "state",
            folder / f"{name}.out",
            layout(),
            folder / f"{name}.weights",
            path,
        ]
        processes[name] = start(PROCESS, "gradients", *words)
    for name, process in processes.items():
        code, said = finish(process)
        assert code == 0, f"{name}: {said[-6000:]}"
    return {name: load_file(folder / f"{name}.out") for name in given}


def exact(segment, weights, window):
    """(loss of each token, {name: gradient}) in FP32 on the CPU, where nothing is rounded to BF16 or TF32."""
    model = build_model(segment.model)
    model.load_state_dict({name: weight.float() for name, weight in weights.items()})
    logits = model(window[:, :-1]).flatten(0, 1)
    losses = torch.nn.functional.cross_entropy(logits, window[:, 1:].flatten(), reduction="none")
    losses.mean().backward()
    return losses.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


def distance(a, b, over):
    """Of the gradients of all linear layers and convolutions, over the length of `over`."""
    names = [name for name in over if name.endswith(("_proj.weight", "conv1d.weight"))]
    left, right, length = (
        torch.cat([values[name].double().flatten() for name in names]) for values in (a, b, over)
    )
    return float((left - right).norm() / length.norm())


@pytest.fixture(scope="module")
def both_paths(tmp_path_factory):
    """pattern -> (segment, weights, exact losses, exact gradients, what both paths gave)."""

    @cache
    def run(pattern):
        folder = tmp_path_factory.mktemp("mamba")
        segment = segment_with(folder, pattern)
        weights = draw_weights(segment.model)
        found = gradients_of(segment, folder, {path: (weights, path) for path in ("plain", "fused")})
        return segment, weights, *exact(segment, weights, found["plain"]["tokens"]), found

    return run


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_fused_mamba_path_is_the_plain_one_but_for_rounding(both_paths, pattern):
    """Same weights and tokens in BF16: loss and gradients, beside those in FP32.

    Both paths keep FP32 inside an operation and write BF16, at other places: the plain one also between convolution
    and SiLU; it rounds the scan's output and the fused one its product with the gate. So each is the exact gradient
    plus errors of rounding. Were all of them independent, two such gradients would be sqrt(2) times as far from each
    other as one is from the exact one; what both round alike brings them nearer.
    """
    _, _, losses, gradients, found = both_paths(pattern)
    calls = {name: int(tensors["fused_calls"]) for name, tensors in found.items()}
    assert calls == {"plain": 0, "fused": pattern.count("M")}
    from_exact = {name: distance(tensors, gradients, gradients) for name, tensors in found.items()}
    between = distance(found["fused"], found["plain"], gradients)
    means = {name: float(tensors["loss"]) for name, tensors in found.items()}
    noise = float((found["plain"]["losses"] - losses).std() / len(losses) ** 0.5)
    roundings = 2 * (sum(ROUNDINGS[symbol] for symbol in pattern) + ROUNDINGS["end"])  # forward and backward
    note(
        "fused Mamba path against the plain one",
        pattern=pattern,
        losses={**means, "exact": float(losses.mean())},
        noise_of_the_loss=noise,
        distance_between=between,
        distances_from_exact=from_exact,
        expected_distance_from_exact=roundings**0.5 * ROUNDING,
    )
    # In a shallow model errors add up as they come: one for each value written, twice that for Triton's inside.
    assert from_exact["plain"] < 2 * roundings**0.5 * ROUNDING or pattern != PATTERNS[0]
    assert between < 2**0.5 * from_exact["plain"]
    # Means over tokens of two roundings: four standard deviations of their difference.
    assert abs(means["fused"] - means["plain"]) < 4 * 2**0.5 * noise


@pytest.mark.parametrize("pattern", PATTERNS)
def test_one_wrong_weight_of_a_convolution_does_not_pass_as_rounding(both_paths, tmp_path, pattern):
    """The first channel of what the first layer's convolution hands on to the scan as x, B or C."""
    segment, weights, _, gradients, found = both_paths(pattern)
    spec = segment.model
    first = {"x": 0, "B": spec.mamba_inner_size, "C": (spec.mamba_inner_size + spec.mamba_conv_size) // 2}
    given = {name: (with_a_wrong_weight(weights, channel), "fused") for name, channel in first.items()}
    wrong = gradients_of(segment, tmp_path, given)
    between = {name: distance(tensors, found["plain"], gradients) for name, tensors in wrong.items()}
    bound = 2**0.5 * distance(found["plain"], gradients, gradients)
    note("wrong convolutions", pattern=pattern, distances=between, bound=bound)
    assert min(between.values()) > bound, between
