"""Initial weights: Megatron-LM's, drawn per parameter so that nothing but seed, name and shape decides them.

The paper says nothing about initial weights. What is taken from where:

    linear layers, embedding, output head   N(0, init_std); init_std from the model file (Megatron-LM's
                                            configurations of Nemotron-H 8B and Nemotron Nano 2 12B)
    the layer that closes a residual branch N(0, init_std / sqrt(number of residual branches)): 1 a block in the
                                            hybrid, 2 a block in the transformer (Megatron-LM core 0.16,
                                            transformer_config.py: multiplier 1 for hybrids, else 2)
    A                                       uniform in (1, 16), stored as A_log (mamba_mixer.py)
    dt_bias                                 softplus(dt_bias) log-uniform in (0.001, 0.1), at least 1e-4
    convolution                             uniform in +-1/sqrt(kernel), weight and bias (PyTorch's own)
    D, norms                                1

transformers' NemotronH starts differently (A = 1..heads, Kaiming-uniform out_proj): its initial losses are not
comparable.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from repro.experiments.model import ModelSpec
from repro.numerics.random_bits import derive_seed

A_RANGE = (1.0, 16.0)
DT_RANGE = (0.001, 0.1)  # tokens' step sizes at the start
DT_FLOOR = 1e-4
RESIDUAL_OUTPUTS = ("out_proj.weight", "o_proj.weight", "down_proj.weight")


@torch.no_grad()
def initialize(model: nn.Module, spec: ModelSpec, *, seed: int) -> None:
    """Overwrite every parameter of `model` in place.

    Drawn in FP32 on the CPU, one generator a parameter seeded by (seed, name), then copied to the parameter's
    device and dtype: a layer that is added, moved or quantised changes no other layer's weights. A parameter of a
    kind that the table above does not name is an assertion error, never a guess.
    """
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed(derive_seed(seed, "init", name))
        parameter.copy_(_draw(name, parameter.shape, spec, generator))


def _draw(name: str, shape: torch.Size, spec: ModelSpec, generator: torch.Generator) -> Tensor:
    *_, owner, leaf = ["", *name.split(".")]
    if leaf == "D" or "norm" in owner:
        return torch.ones(shape)
    if leaf == "A_log":
        return torch.empty(shape).uniform_(*A_RANGE, generator=generator).log()
    if leaf == "dt_bias":
        low, high = (math.log(bound) for bound in DT_RANGE)
        dt = torch.empty(shape).uniform_(low, high, generator=generator).exp().clamp(min=DT_FLOOR)
        return dt + torch.log(-torch.expm1(-dt))  # the inverse of softplus
    if owner == "conv1d":
        bound = 1.0 / math.sqrt(spec.mamba_conv_kernel)
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)
    assert len(shape) == 2, f"no initial distribution is stated for {name} of shape {tuple(shape)}"
    std = spec.init_std
    if name.endswith(RESIDUAL_OUTPUTS):
        std /= math.sqrt(len(spec.pattern))
    return torch.empty(shape).normal_(0.0, std, generator=generator)
