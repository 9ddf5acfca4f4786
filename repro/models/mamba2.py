"""The Mamba-2 mixer (arXiv 2405.21060) as Nemotron-H and Megatron-LM build it.

    z, (x, B, C), dt = split(in_proj(u));   x, B, C = silu(causal depthwise convolution);
    y = scan(x, dt, A, B, C) + D x;         out_proj(rms_norm(y * silu(z)))

Only in_proj and out_proj are quantisable; convolution, scan and norm keep the activations' precision.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, silu

from repro.experiments.model import ModelSpec
from repro.models.fragments import fragment, is_fusing
from repro.models.norm import GatedRMSNorm
from repro.models.ssd import ssd_scan

log = logging.getLogger(__name__)


class Mamba2(nn.Module):
    """One Mamba-2 mixer; the inner width is twice the hidden width (expansion 2)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.num_heads, self.head_dim = spec.mamba_num_heads, spec.mamba_head_dim
        self.num_groups, self.state_size = spec.mamba_num_groups, spec.mamba_state_size
        self.chunk_size = spec.mamba_chunk_size
        self.inner_size, self.conv_size = spec.mamba_inner_size, spec.mamba_conv_size

        projected = self.inner_size + self.conv_size + self.num_heads  # z; x, B, C; dt
        self.in_proj = nn.Linear(spec.hidden_size, projected, bias=False)
        self.conv1d = CausalConv(self.conv_size, spec.mamba_conv_kernel)
        self.dt_bias = nn.Parameter(torch.empty(self.num_heads))
        self.A_log = nn.Parameter(torch.empty(self.num_heads))
        self.D = nn.Parameter(torch.ones(self.num_heads))
        self.norm = GatedRMSNorm(self.inner_size, num_groups=self.num_groups, eps=spec.norm_eps)
        self.out_proj = nn.Linear(self.inner_size, spec.hidden_size, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        """u [B, S, hidden] -> [B, S, hidden]."""
        z, xBC, dt_BSH = self.in_proj(u).split((self.inner_size, self.conv_size, self.num_heads), dim=-1)
        y_BSHP = ssd_scan(
            self.conv1d(xBC),
            dt_BSH,
            -self.A_log.exp(),
            D=self.D,
            dt_bias=self.dt_bias,
            num_groups=self.num_groups,
            state_size=self.state_size,
            chunk_size=self.chunk_size,
        )
        return self.out_proj(self.norm(y_BSHP.flatten(-2), z))


class CausalConv(nn.Module):
    """silu of a depthwise convolution over time, bias + sum_k weight_k x_{t - K + 1 + k}, zeros before the start.

    Parameters have the shapes of ``nn.Conv1d(channels, channels, kernel, groups=channels)``. It is a sum of K
    shifted products rather than a library convolution: that one costs twice as much on a CPU, and needs the
    tokens in the last dimension.
    """

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel))
        self.bias = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, S, channels] -> [B, S, channels]."""
        if (
            x.is_cuda
            and is_fusing()
            and self.weight.shape[-1] == 4
            and (kernel := _conv_kernel()) is not None
        ):
            return kernel(x, self.weight, self.bias)
        return _silu_of_conv(x, self.weight, self.bias)


@fragment
def _silu_of_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    num_tokens, kernel = x.shape[1], weight.shape[-1]
    weight = weight.to(x.dtype)
    padded = pad(x, (0, 0, kernel - 1, 0))
    y = bias.to(x.dtype)
    for k in range(kernel):
        y = torch.addcmul(y, padded[:, k : k + num_tokens], weight[:, 0, k])
    return silu(y)


@functools.cache
def _conv_kernel() -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """The Triton kernels, or None where triton is not installed (a compiled fragment runs instead)."""
    try:
        from repro.models.conv_kernel import silu_of_conv
    except ImportError as error:
        log.info("convolution without its Triton kernel (%s)", error)
        return None
    return silu_of_conv
