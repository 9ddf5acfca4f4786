"""RMSNorm, plain and gated (the gated one closes a Mamba-2 mixer).

Statistics are taken in at least FP32 whatever the dtype of the input; the result has the input's dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from repro.models.fragments import fragment


class RMSNorm(nn.Module):
    """y = weight * x / sqrt(mean(x^2) + eps) over the last dimension."""

    def __init__(self, size: int, *, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x [..., size] -> the same shape and dtype."""
        return _rms_norm(x, self.weight, self.eps)


class GatedRMSNorm(nn.Module):
    """y = weight * rms_norm(x * silu(gate)), normalised inside each of `num_groups` equal parts.

    The gate comes before the norm, as in Megatron-LM (``norm_before_gate=False``).
    """

    def __init__(self, size: int, *, num_groups: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.num_groups = num_groups
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """x, gate [..., size] -> the same shape and dtype as x."""
        return _gated_rms_norm(x, gate, self.weight, self.num_groups, self.eps)


@fragment
def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    work = torch.promote_types(x.dtype, torch.float32)
    return rms_norm(x.to(work), weight.shape, weight.to(work), eps).to(x.dtype)


@fragment
def _gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, num_groups: int, eps: float) -> Tensor:
    work = torch.promote_types(x.dtype, torch.float32)
    gated = (x.to(work) * silu(gate.to(work))).unflatten(-1, (num_groups, -1))
    normed = rms_norm(gated, gated.shape[-1:], eps=eps).flatten(-2)
    return (normed * weight.to(work)).to(x.dtype)
