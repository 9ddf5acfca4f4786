"""Random bits as a pure function of a seed: Philox4x32-10, and seeds derived from what they are for.

Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011); the same generator as CUDA's and
Triton's `tl.philox`, so that every backend draws the same bits:

    key     = (seed low 32 bits, seed high 32 bits)
    counter = (block low 32 bits, block high 32 bits, 0, 0),   block = linear index // 16
    byte    = linear index % 16: byte (b % 4) of output word b // 4, least significant byte first

Stochastic rounding takes 8 bits a value: one byte per element, in the row-major order of the tensor's own
layout. Nothing here keeps a state: a resumed run draws what the uninterrupted one would have drawn.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from repro.numerics.checks import check_seed

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_NUM_ROUNDS = 10
_BYTES_PER_BLOCK = 16


def derive_seed(run_seed: int, *parts: int | str) -> int:
    """A 64-bit seed for one purpose, e.g. derive_seed(run_seed, step, "layer 3", "dgrad", "g").

    Stable over processes, machines and Python versions (BLAKE2b of the parts). Any two different lists of
    parts give unrelated seeds; 1 and "1" are different parts. Raises TypeError for other types.
    """
    for part in (run_seed, *parts):
        if isinstance(part, bool) or not isinstance(part, int | str):
            raise TypeError(f"a seed is derived from integers and strings, not {part!r}")
    # repr() separates unambiguously: strings are quoted and escaped, integers are not.
    text = ",".join(repr(part) for part in (run_seed, *parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def seed_tensor(seeds: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """int64 [len(seeds)]: integers modulo 2^64 as their 64 bits. Each element is a seed for `random_bits` and
    `make_operand`, which a captured CUDA graph reads anew at every replay."""
    try:
        words = [seed & 0xFFFFFFFFFFFFFFFF for seed in seeds]
    except (TypeError, OverflowError):
        for seed in seeds if isinstance(seeds, Sequence) else ("seeds that are no list",):
            check_seed(seed)
        raise
    return torch.tensor([w - (1 << 64) if w >> 63 else w for w in words], dtype=torch.int64, device=device)


def philox4x32(counter: Sequence[Tensor], key: tuple[int | Tensor, int | Tensor]) -> list[Tensor]:
    """Philox4x32-10. `counter`: four int64 tensors of one shape holding 32-bit words; returns four alike.

    `key`: two 32-bit words, integers or int64 scalars on the counter's device.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        # The 64-bit product wraps into the sign bit; shifting and masking still reads its two halves.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> 32 & _MASK) ^ c1 ^ k0,
            product1 & _MASK,
            (product0 >> 32 & _MASK) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return [c0, c1, c2, c3]


def random_bits(seed: int | Tensor, shape: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """uint8 tensor of `shape`, each byte uniform; a pure function of seed and linear index.

    `seed` is any integer, used modulo 2^64, or one int64 on `device` with the same bits (`seed_tensor`).
    A longer tensor starts with the bytes of a shorter one. Raises TypeError for a seed or shape of another kind,
    ValueError for a tensor of other than one int64 or a negative size.
    """
    check_seed(seed)
    if not isinstance(shape, Sequence) or not all(hasattr(size, "__index__") for size in shape):
        raise TypeError(f"a shape is a list of sizes such as (2, 3), not {shape!r:.40}")
    if min(shape, default=0) < 0:
        raise ValueError(f"sizes are not negative; got shape {tuple(shape)}")
    num_values = math.prod(shape)
    num_blocks = -(-num_values // _BYTES_PER_BLOCK)
    block = torch.arange(num_blocks, dtype=torch.int64, device=device)
    zero = torch.zeros_like(block)
    if isinstance(seed, Tensor):
        if seed.dtype != torch.int64 or seed.numel() != 1:
            given = f"{seed.numel()} {str(seed.dtype).removeprefix('torch.')}"
            raise ValueError(f"a seed in a tensor is one int64; got {given}")
        seed = seed.reshape(())
    words = philox4x32((block & _MASK, block >> 32, zero, zero), (seed & _MASK, seed >> 32 & _MASK))
    shifts = torch.arange(0, 32, 8, dtype=torch.int64, device=device)
    by_word = torch.stack(words, 1)  # [blocks, 4]
    by_byte = (by_word.unsqueeze(-1) >> shifts & 0xFF).to(torch.uint8)  # [blocks, 4, 4]
    return by_byte.reshape(-1)[:num_values].reshape(tuple(shape))
