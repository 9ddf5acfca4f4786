"""Backward passes of mamba_ssm's scan kernels: what each reads, and the gradients that it writes.

Shapes: B sequences, S tokens, H heads, P features of a head, G groups, N state size, K chunks of L tokens; x and y
[B, S, H, P], B and C [B, S, G, N], per token [B, H, K, L] FP32.

Does not: put them in order (ssd_kernels.py).
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from repro.models.ssd_launch import NO_INDEX, NO_LIMITS, Sizes, by_chunk, launch, tile_of


def states_backward(s: Sizes, C: Tensor, decay: Tensor, dy: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of each chunk's own state [B, K, H, P, N] and of its decay as a whole [B, H, K]."""
    direct = torch.empty_like(states)
    s.per_chunk(
        "_chunk_scan_bwd_dstates_kernel", s.features, s.state, s.heads,
        dy, C, direct, decay, None,
        s.features, s.state, s.chunk, s.batch, s.tokens, s.chunks, s.ratio,
        *dy.stride(), *C.stride(), *direct.stride(), *by_chunk(decay), *NO_INDEX,
    )  # fmt: skip
    found, total = torch.empty_like(states, dtype=s.dtype), decay[..., -1]
    ddecay = s.empty(s.batch, s.heads, s.chunks, s.parts_of_state)
    s.by_states(
        "_state_passing_bwd_kernel",
        direct, states, total, None, None, found, ddecay, None, None, s.numbers_of_state, s.chunks, 0, 0,
        *direct.stride()[:3], 1, *states.stride()[:3], 1, total.stride(0), total.stride(2), total.stride(1),
        0, 0, 0, *NO_INDEX, *found.stride()[:3], 1, ddecay.stride(0), ddecay.stride(2), ddecay.stride(1), 0, 0, 0,
        CONVERT_STATES=False, HAS_DFINAL_STATES=False, HAS_DINITSTATES=False,
    )  # fmt: skip
    return found, ddecay.sum(-1)


def x_backward(
    s: Sizes, x: Tensor, products: Tensor, dy: Tensor, step: Tensor, decay: Tensor, D: Tensor, B: Tensor,
    dstates: Tensor, dx: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Writes dx; returns the gradients of dt as x's factor [B, H, K, L] and of D [H]."""
    name = "_chunk_scan_chunk_state_bwd_dx_kernel"
    tile = tile_of(name, s.features)
    down, across = triton.cdiv(s.chunk, tile.m), triton.cdiv(s.features, tile.n)
    ddt = s.per_token(across)
    dD = s.empty(down, s.batch, s.chunks, s.heads, across)
    s.per_chunk(
        name, s.chunk, s.features, s.heads,
        x, products, dy, step, decay, None, D, B, dstates, dx, ddt, dD,
        s.chunk, s.features, s.state, s.batch, s.tokens, s.ratio,
        *x.stride(), *products.stride()[:3], products.stride(-1), products.stride(-2), *dy.stride(),
        *by_chunk(step), *by_chunk(decay), *NO_INDEX, *D.stride(), *B.stride(), *dstates.stride(), *dx.stride(),
        *by_chunk(ddt[0]), ddt.stride(0), *dD.stride()[1:4], dD.stride(0), dD.stride(4),
        HAS_D=True, D_HAS_HDIM=False, BLOCK_SIZE_DSTATE=s.block_of_state, IS_TRITON_22=True,
        DETERMINISTIC_REDUCTION=True,
    )  # fmt: skip
    return _added(ddt), dD.sum((0, 1, 2, 4))


def states_to_b_backward(
    s: Sizes, x: Tensor, dstates: Tensor, B: Tensor, step: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor]:
    """What the states add to dB [B, S, G, N], FP32, and to the gradient of the decays [B, H, K, L]."""
    name = "_chunk_state_bwd_db_kernel"
    dB = s.empty(s.batch, s.tokens, s.groups, s.state)
    parts = triton.cdiv(s.state, tile_of(name, s.features).n)
    ddecay = s.per_token(parts)
    ddecay[..., 0] = 0.0  # the kernel writes the others
    s.per_chunk(
        name, s.chunk, s.state, s.groups, x, dstates, B, step, decay, None, dB, ddecay,
        s.chunk, s.state, s.features, s.batch, s.tokens, s.heads, s.ratio, s.groups,
        *x.stride(), *dstates.stride(), *B.stride(), *by_chunk(step), *by_chunk(decay), *NO_INDEX,
        *dB.stride()[:2], 0, *dB.stride()[2:], *by_chunk(ddecay[0]), ddecay.stride(0),
        HAS_DDA_CS=True, DETERMINISTIC_REDUCTION=True, BLOCK_SIZE_K=s.block_of_features,
    )  # fmt: skip
    return dB, _added(ddecay)


def states_to_c_backward(
    s: Sizes, dy: Tensor, states: Tensor, C: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor]:
    """What the states add to dC [B, S, G, N], FP32, and to the gradient of the decays [B, H, K, L]."""
    name = "_chunk_scan_bwd_dc_kernel"
    dC = s.empty(s.batch, s.tokens, s.groups, s.state)
    ddecay = s.per_token(triton.cdiv(s.state, tile_of(name, s.features).n))
    s.per_chunk(
        name, s.chunk, s.state, s.groups, dy, states, C, decay, None, dC, ddecay,
        s.chunk, s.state, s.features, s.batch, s.tokens, s.heads, s.ratio, s.groups,
        *dy.stride(), *states.stride(), *C.stride(), *by_chunk(decay), *NO_INDEX,
        *dC.stride()[:2], 0, *dC.stride()[2:], *by_chunk(ddecay[0]), ddecay.stride(0),
        HAS_DDA_CS=True, DETERMINISTIC_REDUCTION=True, BLOCK_SIZE_K=s.block_of_features,
    )  # fmt: skip
    return dC, _added(ddecay)


def products_backward(s: Sizes, x: Tensor, dy: Tensor, step: Tensor, decay: Tensor) -> Tensor:
    """Gradient of `products`, in the dtype that its products take it in."""
    out = s.empty(s.batch, s.chunks, s.groups, s.chunk, s.chunk, dtype=s.dtype)
    s.per_chunk(
        "_chunk_scan_bwd_dcb_kernel", s.chunk, s.chunk, s.groups,
        x, dy, None, step, decay, None, out, None,
        s.chunk, s.features, s.batch, s.tokens, s.heads, s.ratio, s.groups,
        *x.stride(), *dy.stride(), 0, 0, 0, 0, 0, *by_chunk(step), *by_chunk(decay), *NO_INDEX,
        *out.stride()[:2], 0, *out.stride()[2:], 0, 0, 0, 0, 0,
        HAS_DDA_CS=False, BLOCK_SIZE_K=s.block_of_features,
    )  # fmt: skip
    return out


def pair_backward(s: Sizes, other: Tensor, dproducts: Tensor, of_states: Tensor, out: Tensor) -> None:
    """Writes dB or dC [B, S, G, N]: dproducts with the other one, and what the states add."""
    launch(
        "_bmm_chunk_bwd_kernel", s.features, (s.chunk, s.state), (s.batch, s.chunks * s.groups),
        other, dproducts, out, of_states, s.tokens, s.chunk, s.state, s.groups,
        *other.stride(), *dproducts.stride(), *out.stride(), *of_states.stride(),
        dot_dtype=s.dot, HAS_RESIDUAL=True,
    )  # fmt: skip


def decay_backward(s: Sizes, x: Tensor, dy: Tensor, step: Tensor, decay: Tensor, products: Tensor) -> Tensor:
    """What the sums inside chunks add to the gradient of dt A, [B, H, K, L]."""
    name = "_chunk_scan_bwd_ddAcs_stable_kernel"
    parts = triton.cdiv(s.chunk, tile_of(name, s.features).m)
    out = s.empty(s.batch, s.heads, s.chunks, parts, s.chunk)
    tile = tile_of(name, s.features)
    launch(
        name, s.features, (s.chunk, tile.n), (s.batch * s.chunks, s.heads),
        x, dy, step, decay, products, out, s.chunk, s.features, s.batch, s.tokens, s.ratio,
        *x.stride(), *dy.stride(), *by_chunk(step), *by_chunk(decay), *products.stride(),
        out.stride(0), out.stride(2), out.stride(1), *out.stride()[3:], BLOCK_SIZE_K=s.block_of_features,
    )  # fmt: skip
    return out.sum(3)


def dt_backward(
    s: Sizes, ddecay: Tensor, ddt: Tensor, dt: Tensor, A: Tensor, dt_bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of raw dt [B, S, H], A and dt_bias [H]."""
    out = torch.empty_like(dt, memory_format=torch.contiguous_format)
    dA, dbias = (s.empty(s.batch, s.chunks, s.heads) for _ in range(2))
    s.by_heads(
        "_chunk_cumsum_bwd_kernel",
        ddecay, ddt, dt, A, dt_bias, out, dA, dbias, s.batch, s.tokens, s.heads, s.chunk, *NO_LIMITS,
        *by_chunk(ddecay), *by_chunk(ddt), *dt.stride(), *A.stride(), *dt_bias.stride(), *out.stride(),
        *dA.stride(), *dbias.stride(), DETERMINISTIC_REDUCTION=True,
    )  # fmt: skip
    return out, dA.sum((0, 1)), dbias.sum((0, 1))


def _added(parts: Tensor) -> Tensor:
    """The sum over the first dimension, in order."""
    return parts[0] if len(parts) == 1 else parts.sum(0)
