"""Whole models: sizes on the meta device, what may be quantised, causality, no trace of a precision."""

import pytest
import torch
from model_specs import FAMILIES, TIERS, from_config, small
from torch import nn

from repro.models import build_model


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_built_model_has_exactly_the_parameters_that_the_spec_counts(tier, family):
    spec = from_config(tier, family)
    model = build_model(spec, device="meta")
    assert sum(p.numel() for p in model.parameters()) == spec.num_parameters()
    by_block = [0] * spec.num_blocks
    for _, block, layer in model.quantizable_linears():
        by_block[block] += layer.weight.numel()
    assert tuple(by_block) == spec.linear_parameters_by_block()


def test_quantizable_layers_of_the_hybrid_in_the_order_they_run():
    model = build_model(small("hybrid", pattern="M-M*-"), device="meta")
    found = [(name, block) for name, block, _ in model.quantizable_linears()]
    assert found == [
        ("model.layers.0.mixer.in_proj", 0),
        ("model.layers.0.mixer.out_proj", 0),
        ("model.layers.1.mixer.up_proj", 1),
        ("model.layers.1.mixer.down_proj", 1),
        ("model.layers.2.mixer.in_proj", 2),
        ("model.layers.2.mixer.out_proj", 2),
        ("model.layers.3.mixer.q_proj", 3),
        ("model.layers.3.mixer.k_proj", 3),
        ("model.layers.3.mixer.v_proj", 3),
        ("model.layers.3.mixer.o_proj", 3),
        ("model.layers.4.mixer.up_proj", 4),
        ("model.layers.4.mixer.down_proj", 4),
    ]


def test_quantizable_layers_of_the_transformer_share_a_block_index():
    model = build_model(small("transformer"), device="meta")
    found = [(name.split(".", 3)[-1], block) for name, block, _ in model.quantizable_linears()]
    parts = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
    assert found == [(part, i) for i in range(3) for part in [*parts, "mlp.up_proj", "mlp.down_proj"]]


@pytest.mark.parametrize("kind", ["hybrid", "transformer"])
def test_every_quantizable_layer_really_is_called_as_a_module(kind):
    """A layer whose weight is read past its forward (as fused kernels do) could never be quantised by a swap."""
    model = build_model(small(kind), seed=1)
    called = []
    for name, _, layer in model.quantizable_linears():
        layer.register_forward_hook(lambda *_, name=name: called.append(name))
    model(torch.arange(10)[None])
    assert called == [name for name, _, _ in model.quantizable_linears()]
    inside = {name for name, m in model.named_modules() if isinstance(m, nn.Linear)} - {"lm_head"}
    assert inside == set(called)


@pytest.mark.parametrize("kind", ["hybrid", "transformer"])
def test_logits_do_not_see_later_tokens(kind):
    model = build_model(small(kind), seed=1, dtype=torch.float64)
    token_ids = torch.randint(0, 96, (2, 21), generator=torch.Generator().manual_seed(0))
    changed = token_ids.clone()
    changed[:, 13:] = (changed[:, 13:] + 1) % 96
    before, after = model(token_ids), model(changed)
    assert torch.allclose(before[:, :13], after[:, :13], rtol=0, atol=1e-12)
    assert not torch.allclose(before[:, 13:], after[:, 13:], atol=1e-3), "the change itself must be visible"


@pytest.mark.parametrize("kind", ["hybrid", "transformer"])
def test_every_parameter_gets_a_gradient(kind):
    model = build_model(small(kind), seed=1)
    model(torch.arange(30).view(2, 15)).logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        assert parameter.grad.abs().max() > 0, f"the gradient of {name} is zero"


@pytest.mark.parametrize("kind", ["hybrid", "transformer"])
def test_the_model_runs_in_bfloat16_and_keeps_to_it(kind):
    model = build_model(small(kind), seed=1, dtype=torch.bfloat16)
    logits = model(torch.arange(10)[None])
    assert logits.dtype == torch.bfloat16
    single = build_model(small(kind), seed=1)(torch.arange(10)[None])
    # BF16 keeps 8 bits; 8 blocks of additions leave about 1 % of the spread of the logits.
    assert (logits.float() - single).abs().max() < 0.1 * single.std()


@pytest.mark.parametrize("kind", ["hybrid", "transformer"])
def test_training_goes_on_after_an_evaluation_in_inference_mode(kind):
    """Masks are cached; one that was made without gradients must not spoil a later step."""
    model = build_model(small(kind, max_sequence_tokens=63), seed=1)
    token_ids = torch.arange(23)[None]
    with torch.inference_mode():
        model(token_ids)
    model(token_ids).sum().backward()
