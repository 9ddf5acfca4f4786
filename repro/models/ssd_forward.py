"""Forward passes of mamba_ssm's scan kernels: what each reads, and the tensor that it writes.

Shapes: B sequences, S tokens, H heads, P features of a head, G groups, N state size, K chunks of L tokens; x and y
[B, S, H, P], B and C [B, S, G, N], per token [B, H, K, L] FP32.

Does not: put them in order (ssd_kernels.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from repro.models.ssd_launch import NO_INDEX, NO_LIMITS, Sizes, by_chunk, launch


def decays(s: Sizes, dt: Tensor, A: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Running sum of dt A inside each chunk, and dt after bias and softplus: [B, H, K, L]."""
    step, decay = s.per_token(), s.per_token()
    s.by_heads(
        "_chunk_cumsum_fwd_kernel",
        dt, A, dt_bias, step, decay, s.batch, s.tokens, s.heads, s.chunk, *NO_LIMITS,
        *dt.stride(), *A.stride(), *dt_bias.stride(), *by_chunk(step), *by_chunk(decay),
    )  # fmt: skip
    return decay, step


def states_before(s: Sizes, x: Tensor, B: Tensor, step: Tensor, decay: Tensor) -> Tensor:
    """State at the start of each chunk, [B, K, H, P, N]."""
    own = s.empty(s.batch, s.chunks, s.heads, s.features, s.state)
    s.per_chunk(
        "_chunk_state_fwd_kernel", s.features, s.state, s.heads,
        x, B, own, step, decay, None, s.features, s.state, s.chunk, s.batch, s.tokens, s.ratio,
        *x.stride(), *B.stride(), *own.stride(), *by_chunk(step), *by_chunk(decay), *NO_INDEX,
    )  # fmt: skip
    before, after = torch.empty_like(own), s.empty(s.batch, s.heads, s.features, s.state)
    total = decay[..., -1]
    s.by_states(
        "_state_passing_fwd_kernel",
        own, before, after, total, None, None, s.numbers_of_state, s.chunks, 0, 0,
        *own.stride()[:3], 1, *before.stride()[:3], 1, *after.stride()[:2], 1,
        total.stride(0), total.stride(2), total.stride(1), 0, 0, 0, *NO_INDEX,
        HAS_INITSTATES=False,
    )  # fmt: skip
    return before


def products(s: Sizes, C: Tensor, B: Tensor) -> Tensor:
    """C_l . B_s inside each chunk, [B, K, G, L, L]; what lies above the diagonal's tiles is not written."""
    out = s.empty(s.batch, s.chunks, s.groups, s.chunk, s.chunk)
    launch(
        "_bmm_chunk_fwd_kernel", s.features, (s.chunk, s.chunk), (s.batch, s.chunks * s.groups),
        C, B, out, None, s.tokens, s.chunk, s.state, s.groups,
        *C.stride(), *B.stride(), *out.stride(), *NO_INDEX,
        IS_CAUSAL=True, dot_dtype=s.dot, HAS_SEQ_IDX=False,
    )  # fmt: skip
    return out


def outputs(
    s: Sizes, products: Tensor, x: Tensor, step: Tensor, decay: Tensor, C: Tensor, states: Tensor, D: Tensor
) -> Tensor:
    """y [B, S, H, P]."""
    y = s.empty(s.batch, s.tokens, s.heads, s.features, dtype=s.dtype)
    s.per_chunk(
        "_chunk_scan_fwd_kernel", s.chunk, s.features, s.heads,
        products, x, None, y, None, step, decay, None, C, states, D,
        s.chunk, s.features, s.state, s.batch, s.tokens, s.ratio,
        *products.stride(), *x.stride(), 0, 0, 0, 0, *y.stride(), *by_chunk(step), *by_chunk(decay), *NO_INDEX,
        *C.stride(), *states.stride(), *D.stride(),
        IS_CAUSAL=True, HAS_D=True, D_HAS_HDIM=False, HAS_Z=False,
        BLOCK_SIZE_DSTATE=s.block_of_state, IS_TRITON_22=True,
    )  # fmt: skip
    return y
