"""The Mamba-2 scan, exact, in chunks: state space duality (arXiv 2405.21060, Section 6).

Per head h with decay A_h < 0, step dt_t > 0, input x_t [P], and B_t, C_t [N] shared by the heads of a group:

    state_t = exp(dt_t A) state_{t-1} + dt_t B_t x_t^T          state [N, P], state_{-1} = 0
    y_t     = C_t^T state_t + D x_t

Inside a chunk of L tokens this is masked attention with the decay as mask; between chunks only the states travel:

    y_l = sum_{s <= l} exp(cum_l - cum_s) (C_l . B_s) dt_s x_s  +  exp(cum_l) C_l^T state_before_chunk,
    cum = running sum of dt A inside the chunk

Shapes: B batch, S tokens, H heads, P features of a head, G groups, R = H / G heads of a group, N state size,
K chunks, L tokens of a chunk.

On CUDA, `mamba_ssm`'s Triton kernels run instead when they can be imported; one log line says which path it is.
dt is not clamped (Megatron-LM trains with the limits (0, inf)). Nothing here depends on the training precision;
half-precision inputs are computed in FP32.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

log = logging.getLogger(__name__)


def ssd_scan(
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
    """The scan from raw projections to y.

    xBC [B, S, HP + 2GN], x, B and C side by side; dt [B, S, H] before bias and softplus; A [H], negative; D, dt_bias
    [H]. Any S >= 1. Returns y [B, S, H, P] in the dtype of xBC.
    """
    kernel = _mamba_ssm_kernel() if xBC.is_cuda and xBC.dtype != torch.float64 else None
    if kernel is not None:
        return kernel(
            xBC,
            dt,
            A,
            D=D,
            dt_bias=dt_bias,
            num_groups=num_groups,
            state_size=state_size,
            chunk_size=chunk_size,
        )
    _say_once(f"Mamba-2 scan: PyTorch, chunks of {chunk_size} tokens")
    x, B, C = split_projection(xBC, dt.shape[-1], num_groups, state_size)
    return chunked_scan(x, dt, A, B, C, D=D, dt_bias=dt_bias, chunk_size=chunk_size)


def split_projection(
    xBC: Tensor, num_heads: int, num_groups: int, state_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Views x [B, S, H, P], B and C [B, S, G, N] of [B, S, HP + 2GN]."""
    grouped = num_groups * state_size
    x, B, C = xBC.split((xBC.shape[-1] - 2 * grouped, grouped, grouped), dim=-1)
    return (
        x.unflatten(-1, (num_heads, -1)),
        B.unflatten(-1, (num_groups, state_size)),
        C.unflatten(-1, (num_groups, state_size)),
    )


def chunked_scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, *, D: Tensor, dt_bias: Tensor, chunk_size: int
) -> Tensor:
    """`ssd_scan` in PyTorch. Few operations and no [B, S, H, N] copy of B or C, as a small model on a CPU spends
    its time on launches and memory; S that is no multiple of the chunk is padded with tokens of dt = 0.
    """
    work = torch.promote_types(x.dtype, torch.float32)
    num_tokens, num_groups, state_size = x.shape[1], B.shape[2], B.shape[3]
    num_heads, head_dim = x.shape[2:]
    chunk = min(chunk_size, num_tokens)
    padding = -num_tokens % chunk

    dt_BSH = softplus(dt.to(work) + dt_bias.to(work))
    x_BSHP, B_BSGN, C_BSGN = x.to(work), B.to(work), C.to(work)
    if padding:
        dt_BSH = pad(dt_BSH, (0, 0, 0, padding))
        x_BSHP, B_BSGN, C_BSGN = (pad(t, (0, 0, 0, 0, 0, padding)) for t in (x_BSHP, B_BSGN, C_BSGN))

    chunks = (x.shape[0], -1, chunk)
    by_chunk = (0, 3, 1, 2, 4)  # [B, K, L, heads or groups, features] -> [B, heads or groups, K, L, features]
    dt_BHKL = dt_BSH.view(*chunks, num_heads).permute(0, 3, 1, 2)
    cum_BHKL = _running_sum(dt_BHKL * A.to(work)[:, None, None])
    v_BHKLP = (x_BSHP * dt_BSH[..., None]).view(*chunks, num_heads, head_dim).permute(by_chunk)
    B_BGKLN = B_BSGN.reshape(*chunks, num_groups, state_size).permute(by_chunk)
    C_BGKLN = C_BSGN.reshape(*chunks, num_groups, state_size).permute(by_chunk)

    decay_BHKLL = (cum_BHKL[..., :, None] - cum_BHKL[..., None, :] + _causal_bias(chunk, cum_BHKL)).exp()
    scores_BGKLL = C_BGKLN @ B_BGKLN.transpose(-1, -2)
    weights = _by_group(decay_BHKLL, num_groups) * scores_BGKLL[:, :, None]
    y_BHKLP = weights.flatten(1, 2) @ v_BHKLP
    if cum_BHKL.shape[2] > 1:
        y_BHKLP = y_BHKLP + _from_earlier_chunks(v_BHKLP, cum_BHKL, decay_BHKLL[..., -1, :], B_BGKLN, C_BGKLN)

    y_BSHP = y_BHKLP.permute(0, 2, 3, 1, 4).reshape(x.shape[0], -1, num_heads, head_dim)
    return torch.addcmul(y_BSHP, x_BSHP, D.to(work)[:, None])[:, :num_tokens].to(x.dtype)


def _from_earlier_chunks(
    v_BHKLP: Tensor, cum_BHKL: Tensor, decay_to_end_BHKL: Tensor, B_BGKLN: Tensor, C_BGKLN: Tensor
) -> Tensor:
    """What the states at the start of each chunk add to its outputs, [B, H, K, L, P]."""
    num_groups = B_BGKLN.shape[1]
    v_to_end_BGRKLP = _by_group(v_BHKLP * decay_to_end_BHKL[..., None], num_groups)
    own_BGRKNP = B_BGKLN.transpose(-1, -2)[:, :, None] @ v_to_end_BGRKLP
    # The state before chunk k sums those of the chunks j < k, each decayed over the chunks between. `before` is
    # `until` shifted, not `until - total`: the decay from the chunk just before must be exactly 1.
    until_BHK = _running_sum(cum_BHKL[..., -1])
    before_BHK = pad(until_BHK[..., :-1], (1, 0))
    strictly_earlier = _causal_bias(until_BHK.shape[-1], until_BHK, diagonal=0)
    carry_BHKK = (before_BHK[..., :, None] - until_BHK[..., None, :] + strictly_earlier).exp()
    start_BHKNP = (carry_BHKK @ own_BGRKNP.flatten(1, 2).flatten(3)).unflatten(-1, own_BGRKNP.shape[-2:])
    y_BGRKLP = C_BGKLN[:, :, None] @ _by_group(start_BHKNP, num_groups)
    return y_BGRKLP.flatten(1, 2) * cum_BHKL.exp()[..., None]


def _running_sum(t: Tensor) -> Tensor:
    """Along the last dimension. On a GPU a product with a triangle: PyTorch calls its cumsum there unrepeatable."""
    if not t.is_cuda:
        return t.cumsum(-1)
    return t @ torch.ones(t.shape[-1], t.shape[-1], dtype=t.dtype, device=t.device).triu()


def _by_group(t: Tensor, num_groups: int) -> Tensor:
    """[B, H, ...] as [B, G, R, ...]: consecutive heads share a group."""
    return t.unflatten(1, (num_groups, -1))


def _causal_bias(size: int, like: Tensor, *, diagonal: int = 1) -> Tensor:
    """0 where the column is an earlier position, -inf from `diagonal` on: exp() of it masks, gradients finite."""
    return _cached_bias(size, diagonal, like.dtype, like.device)


@functools.lru_cache(maxsize=32)
def _cached_bias(size: int, diagonal: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((size, size), -torch.inf, dtype=dtype, device=device).triu(diagonal)


@functools.cache
def _mamba_ssm_kernel() -> Callable[..., Tensor] | None:
    """The scan by mamba_ssm's kernels, or None when it can't be imported.

    Launched by ssd_kernels.py where the version is the one it knows, else by the package, which takes longer.
    """
    try:
        import mamba_ssm.ops.triton.ssd_combined  # noqa: F401

        from repro.models.ssd_launch import VERSION, load_kernels
    except (ImportError, OSError) as error:
        log.info("mamba_ssm can't be imported (%s)", error)
        return None
    try:
        load_kernels()
    except (ImportError, AttributeError) as error:
        _say_once(f"Mamba-2 scan: mamba_ssm as it comes, slower than its version {VERSION} ({error})")
        return _by_package
    from repro.models.ssd_kernels import ssd_by_kernels

    _say_once("Mamba-2 scan: mamba_ssm's Triton kernels")
    return ssd_by_kernels


def _by_package(
    xBC: Tensor,
    dt: Tensor,
    A: Tensor,
    *,
    num_groups: int,
    state_size: int,
    chunk_size: int,
    **vectors: Tensor,
) -> Tensor:
    """`ssd_scan` by the package's own function (it leaves dt unclamped)."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    x, B, C = split_projection(xBC, dt.shape[-1], num_groups, state_size)
    return mamba_chunk_scan_combined(x, dt, A, B, C, chunk_size, dt_softplus=True, **vectors)


@functools.cache
def _say_once(message: str) -> None:
    log.info(message)
