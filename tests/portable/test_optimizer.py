"""AdamW equals torch's own; state goes by name; what is decayed."""

import pytest
import torch
from small_segment import MODEL
from torch import nn

from repro.experiments.model import ModelSpec
from repro.models import build_model
from repro.portable.optimizer import Optimizer

SECTION = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip_grad_norm": 1.0}


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))


def gradients(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = 10 * torch.randn(parameter.shape, generator=generator)


def test_five_steps_equal_torchs_adamw_with_clipping_and_matrices_decayed():
    ours, theirs = small_model(), small_model()
    optimizer = Optimizer(ours, SECTION)
    matrices = [p for p in theirs.parameters() if p.ndim == 2]
    vectors = [p for p in theirs.parameters() if p.ndim == 1]
    reference = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        eps=1e-8,
        fused=True,
    )
    for step in range(5):
        gradients(ours, step)
        gradients(theirs, step)
        norm = optimizer.step(1e-2)
        expected = nn.utils.clip_grad_norm_(list(theirs.parameters()), 1.0)
        for group in reference.param_groups:
            group["lr"] = 1e-2
        reference.step()
        torch.testing.assert_close(norm, expected, rtol=1e-6, atol=0)  # the order of the sum differs
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7, msg=name)


def test_decay_moves_the_matrices_of_a_hybrid_and_no_vector_norm_or_convolution():
    model = build_model(ModelSpec.model_validate(MODEL), seed=1)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    Optimizer(model, SECTION).step(1e-2)  # without gradients nothing but the decay moves a parameter
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == {
        name for name in before if name.endswith(("proj.weight", "head.weight", "embeddings.weight"))
    }
    kept = {name.rpartition("mixer.")[2] for name in before.keys() - moved}
    assert kept >= {"A_log", "D", "dt_bias", "conv1d.weight", "conv1d.bias", "norm.weight"}


def test_moments_have_the_names_of_what_they_hold():
    model = small_model()
    gradients(model, 0)
    gradient = model[0].weight.grad.clone()
    optimizer = Optimizer(model, SECTION | {"clip_grad_norm": 1e9})
    optimizer.step(1e-2)
    state = optimizer.state_tensors()
    torch.testing.assert_close(state["exp_avg.0.weight"], 0.1 * gradient)
    torch.testing.assert_close(state["exp_avg_sq.0.weight"], 0.05 * gradient**2)


def test_state_goes_by_name_and_a_missing_part_is_named():
    model = small_model()
    optimizer = Optimizer(model, SECTION)
    gradients(model, 0)
    optimizer.step(1e-2)
    state = {name: tensor.clone() for name, tensor in optimizer.state_tensors().items()}
    twin_model = small_model()
    twin_model.load_state_dict(model.state_dict())
    twin = Optimizer(twin_model, SECTION)
    twin.load_state_tensors(state)
    gradients(model, 1)
    gradients(twin_model, 1)
    optimizer.step(1e-2)
    twin.step(1e-2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin_model.parameters(), strict=True))
    del state["exp_avg_sq.0.weight"]
    with pytest.raises(ValueError, match=r"lacks the optimizer state exp_avg_sq\.0\.weight"):
        twin.load_state_tensors(state)
