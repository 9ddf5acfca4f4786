"""The Mamba-2 scan on a GPU: mamba_ssm's Triton kernels in an order that computes nothing twice.

What `mamba_chunk_scan_combined` computes (Tri Dao, Albert Gu; arXiv 2405.21060, Section 6), for training:

- Decays, products C B and chunk states are kept for the backward pass instead of being made again.
- x, B and C come in one tensor, as the convolution gives them, and so does their gradient: no concatenation.
- Partial sums are stored and added in a fixed order; nothing depends on the number of sequences in a batch.

Shapes: B sequences, S tokens, H heads, P features of a head, G groups, N state size, K chunks of L tokens. xBC
[B, S, HP + 2GN] bfloat16 or float32, dt [B, S, H]; decays, states and sums are FP32.

Does not: reset the state inside a sequence, start from a state, or clamp dt.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from repro.models import ssd_backward as backward
from repro.models import ssd_forward as forward
from repro.models.ssd import split_projection
from repro.models.ssd_launch import Sizes


def ssd_by_kernels(
    xBC: Tensor,
    dt: Tensor,
    A: Tensor,
    *,
    D: Tensor,
    dt_bias: Tensor,
    num_groups: int,
    state_size: int,
    chunk_size: int,
) -> Tensor:
    """`repro.models.ssd.ssd_scan` on a GPU."""
    return _Scan.apply(xBC, dt, A, D, dt_bias, num_groups, state_size, chunk_size)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        xBC: Tensor,
        dt: Tensor,
        A: Tensor,
        D: Tensor,
        dt_bias: Tensor,
        groups: int,
        state: int,
        chunk: int,
    ) -> Tensor:
        s = Sizes(xBC, dt, groups, state, chunk)
        x, B, C = split_projection(xBC, s.heads, groups, state)
        decay, step = forward.decays(s, dt, A, dt_bias)
        states = forward.states_before(s, x, B, step, decay)
        products = forward.products(s, C, B)
        y = forward.outputs(s, products, x, step, decay, C, states, D)
        ctx.save_for_backward(xBC, dt, A, D, dt_bias, decay, step, states, products)
        ctx.sizes = s
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        xBC, dt, A, D, dt_bias, decay, step, states, products = ctx.saved_tensors
        s: Sizes = ctx.sizes
        dy = dy if dy.stride(-1) == 1 else dy.contiguous()
        x, B, C = split_projection(xBC, s.heads, s.groups, s.state)
        dxBC = torch.empty_like(xBC)
        dx, dB, dC = split_projection(dxBC, s.heads, s.groups, s.state)
        dstates, of_whole = backward.states_backward(s, C, decay, dy, states)
        dstep, dD = backward.x_backward(s, x, products, dy, step, decay, D, B, dstates, dx)
        dB_of_states, to_end = backward.states_to_b_backward(s, x, dstates, B, step, decay)
        dC_of_states, from_start = backward.states_to_c_backward(s, dy, states, C, decay)
        dproducts = backward.products_backward(s, x, dy, step, decay)
        backward.pair_backward(s, C, dproducts, dB_of_states, dB)
        backward.pair_backward(s, B, dproducts.transpose(-1, -2), dC_of_states, dC)
        # A token's dt A is a part of the decay from the chunk's start to every later token, and from every earlier
        # token to the chunk's end: sums over tokens, as products with triangles, which add in the same order always.
        from_start[..., -1] += of_whole
        later, earlier = _triangles(s.chunk, dy.device)
        ddecay = backward.decay_backward(s, x, dy, step, decay, products)
        rows = ddecay.view(-1, s.chunk)
        rows.addmm_(from_start.view(-1, s.chunk), later).addmm_(to_end.view(-1, s.chunk), earlier)
        ddt, dA, ddt_bias = backward.dt_backward(s, ddecay, dstep, dt, A, dt_bias)
        return dxBC, ddt, dA, dD, ddt_bias, None, None, None


@functools.lru_cache(maxsize=8)
def _triangles(chunk: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """[L, L] FP32: row vectors times the first are sums from each token on, times the second up to each token."""
    ones = torch.ones(chunk, chunk, device=device)
    return ones.tril(), ones.triu()
