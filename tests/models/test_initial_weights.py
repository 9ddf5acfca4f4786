"""Initial weights follow the stated distributions and depend on seed, name and shape alone."""

import math

import pytest
import torch
from model_specs import small

from repro.models import build_model, init
from repro.models.init import initialize


@pytest.mark.parametrize("kind", ["hybrid", "transformer"])
def test_equal_seeds_give_equal_bits_and_another_seed_changes_every_drawn_parameter(kind):
    spec = small(kind)
    first, again, other = (dict(build_model(spec, seed=s).named_parameters()) for s in (7, 7, 8))
    for name, value in first.items():
        assert torch.equal(value, again[name]), f"{name} differs between two builds with one seed"
        constant = name.endswith(".D") or "norm" in name
        assert torch.equal(value, other[name]) == constant, name


def test_a_weight_does_not_depend_on_the_other_layers():
    short, long = (
        dict(build_model(small("hybrid", pattern=p), seed=1).named_parameters()) for p in ("M-*", "M-*M-")
    )
    same = [
        "model.embeddings.weight",
        "model.layers.0.mixer.in_proj.weight",
        "model.layers.2.mixer.q_proj.weight",
    ]
    for name in same:
        assert torch.equal(short[name], long[name]), name


def test_drawing_does_not_touch_the_global_generator():
    state = torch.get_rng_state()
    build_model(small("hybrid"), seed=1)
    assert torch.equal(state, torch.get_rng_state())


def test_distributions_are_the_stated_ones():
    spec = small("hybrid", hidden_size=256, ffn_hidden_size=512, mamba_num_heads=256, mamba_head_dim=2)
    weights = {name: p.detach() for name, p in build_model(spec, seed=3).named_parameters()}
    expected_std = {
        "model.embeddings.weight": 0.2,
        "lm_head.weight": 0.2,
        "model.layers.0.mixer.in_proj.weight": 0.2,
        "model.layers.1.mixer.up_proj.weight": 0.2,
        "model.layers.3.mixer.q_proj.weight": 0.2,
        "model.layers.0.mixer.out_proj.weight": 0.2 / math.sqrt(8),  # 8 residual branches
        "model.layers.1.mixer.down_proj.weight": 0.2 / math.sqrt(8),
        "model.layers.3.mixer.o_proj.weight": 0.2 / math.sqrt(8),
    }
    for name, std in expected_std.items():
        # The spread of n draws is known to 1 / sqrt(2 n); five times that is never exceeded by chance.
        tolerance = 5 / math.sqrt(2 * weights[name].numel())
        assert weights[name].std().item() / std == pytest.approx(1, abs=tolerance), name
    A = weights["model.layers.0.mixer.A_log"].exp()
    assert A.min() >= 1
    assert A.max() <= 16
    assert A.mean().item() == pytest.approx(8.5, abs=5 * 15 / math.sqrt(12 * 256))
    dt = torch.nn.functional.softplus(weights["model.layers.0.mixer.dt_bias"])
    assert dt.min() >= 0.00099
    assert dt.max() <= 0.101
    assert dt.log().mean().item() == pytest.approx(
        math.log(0.01), abs=5 * math.log(100) / math.sqrt(12 * 256)
    )
    taps = weights["model.layers.0.mixer.conv1d.weight"]
    assert taps.abs().max() <= 0.5
    # A uniform variable's square has mean bound^2 / 3, known to 0.9 / sqrt(n).
    assert 12 * taps.square().mean().item() == pytest.approx(1, abs=5 * 0.9 / math.sqrt(taps.numel()))
    assert torch.equal(weights["model.layers.0.mixer.D"], torch.ones(256))


def test_dt_is_what_softplus_makes_of_its_bias(monkeypatch):
    """With steps so large that softplus is far from the exponential, which it almost is below 0.1."""
    monkeypatch.setattr(init, "DT_RANGE", (2.0, 8.0))
    biases = [p for name, p in build_model(small("hybrid"), seed=3).named_parameters() if "dt_bias" in name]
    dt = torch.nn.functional.softplus(torch.cat(biases).detach())
    assert 2.0 * (1 - 1e-6) <= dt.min() <= dt.max() <= 8.0 * (1 + 1e-6), f"dt from {dt.min()} to {dt.max()}"


def test_a_transformer_counts_two_residual_branches_a_block():
    spec = small("transformer", hidden_size=256, ffn_hidden_size=1024)
    weight = dict(build_model(spec, seed=3).named_parameters())["model.layers.0.mlp.down_proj.weight"]
    assert weight.std().item() == pytest.approx(0.2 / math.sqrt(2 * 3), rel=0.01)


def test_an_unknown_kind_of_parameter_is_not_filled_by_guess():
    model = build_model(small("hybrid"), seed=1)
    model.register_parameter("temperature", torch.nn.Parameter(torch.ones(1)))
    with pytest.raises(AssertionError, match="no initial distribution is stated for temperature"):
        initialize(model, small("hybrid"), seed=1)
