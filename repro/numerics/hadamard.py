"""Random Hadamard transform of groups of values, as it enters a GEMM operand before quantising.

Paper section 4.2 and Appendix C: x' = x S H, with H the Hadamard matrix of size d divided by sqrt(d) and S a
diagonal of random signs. Both operands of a GEMM are transformed along the contraction dimension, so that
(x S H)(y S H)^T = x y^T and no inverse is applied anywhere.

    group g, a row vector of `size` values ->  y_j = sum_i g_i s_i H[i][j] / sqrt(size),
    H[i][j] = (-1)^popcount(i & j)  (Sylvester's order)

Order of the FP32 operations, fixed so that every implementation gives the same bits (each rounds to FP32):
 1. v_i = g_i * s_i * 2^-ceil(log2(size) / 2): exact, and no sum overflows unless a result
    of the group does
 2. for stride = 1, 2, 4 ... size/2:  (v_i, v_{i+stride}) <- (v_i + v_{i+stride}, v_i - v_{i+stride})
    for each i whose bit `stride` is 0
 3. v_i = v_i * fl32(sqrt(2)) where log2(size) is odd (sizes 2, 8, 32, 128)
 4. y_i = BF16(v_i), round to nearest even
For size 16 and BF16 data this equals Transformer Engine's result (its factor is 0.25, its sums FP32).

Does not: pad. A dimension that is no multiple of the size is an error, because cropping a transformed
group would break the cancellation in the GEMM.
"""

from __future__ import annotations

import functools
import math
from typing import Literal

import torch
from torch import Tensor

from repro.numerics.checks import check_signs, check_tensor
from repro.numerics.random_bits import random_bits

#: Sizes that recipes and experiments may name. The algorithm itself takes any power of two from 2 on.
SIZES = (2, 4, 8, 16, 32, 64, 128)

#: Transformer Engine's fixed signs of size 16: bit i set means s_i = -1.
TE_SIGN_MASK = 0xD7E8

#: fl32(sqrt 2).
_SQRT_TWO = float.fromhex("0x1.6a09e6p0")

SignKind = Literal["none", "fixed", "random"]


def check_size(size: int) -> None:
    """Raise ValueError unless `size` is one of `SIZES`, naming the nearest one; TypeError if it is no integer."""
    if not isinstance(size, int):
        raise TypeError(f"a Hadamard size is an integer, one of {', '.join(map(str, SIZES))}; got {size!r}")
    if size not in SIZES:
        nearest = min(SIZES, key=lambda s: abs(math.log2(s / max(size, 1))))
        raise ValueError(
            f"Hadamard size {size} is no power of two between {SIZES[0]} and {SIZES[-1]}; nearest is {nearest}"
        )


def sign_vector(size: int, *, kind: SignKind, seed: int | None = None) -> Tensor:
    """The diagonal of S: float32 [size] of +1 and -1.

    kind "none": all +1. "fixed": at size 16 Transformer Engine's mask 0xD7E8; at any other size the same
    derivation as "random" with seed 0xD7E8. "random": s_i = -1 where the lowest bit of byte i of
    `random_bits(seed, (size,))` is set. Raises ValueError for a bad size or kind, and for a seed that is missing
    ("random") or given (any other kind).
    """
    check_size(size)
    if kind not in ("none", "fixed", "random"):
        raise ValueError(f"signs are 'none', 'fixed' or 'random', not {kind!r}")
    if (seed is None) == (kind == "random"):
        raise ValueError(
            "random Hadamard signs need a seed"
            if seed is None
            else f"signs of kind {kind!r} take no seed, only those of kind 'random' do"
        )
    if kind == "none":
        return torch.ones(size, dtype=torch.float32)
    if kind == "fixed" and size == 16:
        signs = [-1.0 if TE_SIGN_MASK >> i & 1 else 1.0 for i in range(size)]
        return torch.tensor(signs, dtype=torch.float32)
    bits = random_bits(TE_SIGN_MASK if seed is None else seed, (size,))
    return 1.0 - 2.0 * (bits & 1).float()


def hadamard_matrix(size: int) -> Tensor:
    """H / sqrt(size): float32 [size, size], symmetric and orthogonal. Raises ValueError for a bad size."""
    check_size(size)
    matrix = torch.ones(1, 1, dtype=torch.float32)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return matrix / math.sqrt(size)


@functools.cache
def scale_factors(size: int) -> tuple[float, float]:
    """The factors before and after the butterflies: (2^-ceil(log2(size)/2), fl32(sqrt 2) or 1)."""
    check_size(size)
    log2_size = size.bit_length() - 1
    return 2.0 ** -((log2_size + 1) // 2), _SQRT_TWO if log2_size % 2 else 1.0


def rotate(x: Tensor, size: int, signs: Tensor | None, *, dim: int) -> Tensor:
    """x S H along `dim`, steps 1 to 3 above: float32, not rounded to BF16, same shape as x.

    Groups are consecutive: indices 0..size-1, size..2*size-1, and so on. `signs` [size] or None for all +1.
    Raises ValueError when x.shape[dim] is no multiple of size or there is no such dimension, x is empty or of another
    dtype, or signs has another length; TypeError for what is no tensor.
    """
    _check(x, size, signs, dim)
    before, after = scale_factors(size)
    moved = x.movedim(dim, -1)
    v = moved.float().reshape(-1, size) * before  # [groups, size]
    if signs is not None:
        v = v * signs.to(v)
    stride = 1
    while stride < size:
        low, high = v.view(-1, size // (2 * stride), 2, stride).unbind(2)
        v = torch.stack((low + high, low - high), 2)
        stride *= 2
    if after != 1.0:
        v = v * after
    return v.reshape(moved.shape).movedim(-1, dim)


def _check(x: Tensor, size: int, signs: Tensor | None, dim: int) -> None:
    check_size(size)
    check_tensor(x)
    if signs is not None:
        check_signs(signs)
    if x.dtype not in (torch.float32, torch.bfloat16):
        given = str(x.dtype).removeprefix("torch.")
        remedy = "" if x.is_complex() else "; x.float() is float32"
        raise ValueError(f"a Hadamard transform takes float32 or bfloat16, not {given}{remedy}")
    if type(dim) is not int or not -x.dim() <= dim < x.dim():
        raise ValueError(
            f"a tensor of shape {tuple(x.shape)} has no dimension {dim!r}; the last is {x.dim() - 1}"
        )
    if x.numel() == 0:
        raise ValueError(f"nothing to transform in a tensor of shape {tuple(x.shape)}")
    length = x.shape[dim]
    if length % size:
        raise ValueError(
            f"dimension {dim} of a tensor of shape {tuple(x.shape)} is {length} long, "
            f"no multiple of the Hadamard size {size}"
        )
    if signs is not None and signs.shape != (size,):
        raise ValueError(f"{size} signs expected, got shape {tuple(signs.shape)}")


def transform(x: Tensor, size: int, signs: Tensor | None, *, dim: int) -> Tensor:
    """x S H along `dim`, rounded to BF16: same shape and dtype as x (float32 or bfloat16), BF16 values.

    Raises as `rotate` does. A result beyond BF16's range becomes infinite.
    """
    return rotate(x, size, signs, dim=dim).to(torch.bfloat16).to(x.dtype)
