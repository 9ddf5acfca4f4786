"""silu of the causal depthwise convolution on a GPU, one Triton kernel forward and one backward.

    pre_t = bias + sum_k weight_k x_{t - 3 + k},   y_t = silu(pre_t)          four taps, zeros before the start

One read and one write of the activations forward, two reads and one write backward; `pre` is made again instead of
kept. What torch.compile makes of the same text took four times as long (it walks the taps in two kernels). Sums are
FP32 with the FP32 weights. Gradients of weight and bias are summed per stretch of tokens, then over the stretches, in
a fixed order: no atomics, the same bits every time.

Shapes: B sequences, S tokens, C channels; x [B, S, C] with any strides, channels contiguous. Not here: other kernel
sizes or devices (mamba2.py has the PyTorch text).
"""

# ruff: noqa: ANN001, ANN202
# Triton functions: the types of their arguments are Triton's.
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TAPS = 4
_TOKENS, _CHANNELS = 32, 128


@triton.jit
def _forward(
    x, weight, bias, y, num_tokens, channels, x_batch, x_token,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    stretches = tl.cdiv(num_tokens, TOKENS)
    batch = (tl.program_id(0) // stretches).to(tl.int64)
    token = (tl.program_id(0) % stretches) * TOKENS + tl.arange(0, TOKENS)[:, None]
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    present = channel < channels
    pre = tl.zeros((TOKENS, CHANNELS), tl.float32)
    pre += tl.load(bias + channel, mask=present, other=0.0)[None, :]
    for k in tl.static_range(4):
        earlier = token - 3 + k
        inside = (earlier >= 0) & (earlier < num_tokens) & present[None, :]
        values = tl.load(x + batch * x_batch + earlier * x_token + channel[None, :], mask=inside, other=0.0)
        pre += values.to(tl.float32) * tl.load(weight + channel * 4 + k, mask=present, other=0.0)[None, :]
    out = y + (batch * num_tokens + token) * channels + channel[None, :]
    tl.store(
        out, (pre * tl.sigmoid(pre)).to(y.dtype.element_ty), mask=(token < num_tokens) & present[None, :]
    )


@triton.jit
def _backward(
    x, weight, bias, grad, dx, partials, num_tokens, channels, x_batch, x_token, grad_batch, grad_token,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Walks a stretch of tokens from its end to its start; dx_t needs the gradients of `pre` at t .. t + 3."""
    stretches = tl.cdiv(num_tokens, TOKENS)
    batch = (tl.program_id(0) // stretches).to(tl.int64)
    start = (tl.program_id(0) % stretches) * TOKENS
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    present = channel < channels
    w0 = tl.load(weight + channel * 4, mask=present, other=0.0)
    w1 = tl.load(weight + channel * 4 + 1, mask=present, other=0.0)
    w2 = tl.load(weight + channel * 4 + 2, mask=present, other=0.0)
    w3 = tl.load(weight + channel * 4 + 3, mask=present, other=0.0)
    b = tl.load(bias + channel, mask=present, other=0.0)
    x += batch * x_batch + channel
    grad += batch * grad_batch + channel
    dx += batch * num_tokens * channels + channel
    zero = tl.zeros((CHANNELS,), tl.float32)
    dw0, dw1, dw2, dw3, db = zero, zero, zero, zero, zero
    # What d1 to d3 start from reaches no result; but were it the same, Triton 3.6 would take them for one variable.
    d1, d2, d3 = w1, w2, w3
    last = start + TOKENS + 2
    x1 = tl.load(x + (last - 2) * x_token, mask=present & (last - 2 < num_tokens), other=0.0).to(tl.float32)
    x2 = tl.load(x + (last - 1) * x_token, mask=present & (last - 1 < num_tokens), other=0.0).to(tl.float32)
    x3 = tl.load(x + last * x_token, mask=present & (last < num_tokens), other=0.0).to(tl.float32)
    for i in range(TOKENS + 3):
        t = last - i
        inside = present & (t - 3 >= 0) & (t - 3 < num_tokens)
        x0 = tl.load(x + (t - 3) * x_token, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(grad + t * grad_token, mask=present & (t < num_tokens), other=0.0).to(tl.float32)
        pre = b + w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3
        gate = tl.sigmoid(pre)
        d0 = g * gate * (1.0 + pre * (1.0 - gate))
        is_own = t < start + TOKENS
        value = w3 * d0 + w2 * d1 + w1 * d2 + w0 * d3
        tl.store(dx + t * channels, value.to(dx.dtype.element_ty), mask=present & is_own & (t < num_tokens))
        own = tl.where(is_own, d0, 0.0)
        dw0 += own * x0
        dw1 += own * x1
        dw2 += own * x2
        dw3 += own * x3
        db += own
        d3, d2, d1 = d2, d1, d0
        x3, x2, x1 = x2, x1, x0
    partials += tl.program_id(0).to(tl.int64) * 5 * channels + channel
    tl.store(partials, dw0, mask=present)
    tl.store(partials + channels, dw1, mask=present)
    tl.store(partials + 2 * channels, dw2, mask=present)
    tl.store(partials + 3 * channels, dw3, mask=present)
    tl.store(partials + 4 * channels, db, mask=present)


def silu_of_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x [B, S, C] bfloat16 or float32, weight [C, 1, 4] and bias [C] float32 -> [B, S, C] in x's dtype."""
    return _SiluOfConv.apply(x if x.stride(2) == 1 else x.contiguous(), weight, bias)


class _SiluOfConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        batch, num_tokens, channels = x.shape
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        grid = (batch * triton.cdiv(num_tokens, _TOKENS), triton.cdiv(channels, _CHANNELS))
        _forward[grid](
            x,
            weight,
            bias,
            y,
            num_tokens,
            channels,
            x.stride(0),
            x.stride(1),
            TOKENS=_TOKENS,
            CHANNELS=_CHANNELS,
        )
        ctx.save_for_backward(x, weight, bias)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, bias = ctx.saved_tensors
        grad = grad if grad.stride(2) == 1 else grad.contiguous()
        batch, num_tokens, channels = x.shape
        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        stretch = 4 * _TOKENS
        programs = batch * triton.cdiv(num_tokens, stretch)
        partials = torch.empty(programs, TAPS + 1, channels, dtype=torch.float32, device=x.device)
        _backward[programs, triton.cdiv(channels, _CHANNELS)](
            x, weight, bias, grad, dx, partials, num_tokens, channels,
            x.stride(0), x.stride(1), grad.stride(0), grad.stride(1), TOKENS=stretch, CHANNELS=_CHANNELS,
            num_warps=2,
        )  # fmt: skip
        sums = partials.sum(0)
        return dx, sums[:TAPS].t().unsqueeze(1).to(weight.dtype), sums[TAPS].to(bias.dtype)
