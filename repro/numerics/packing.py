"""Two 4-bit codes to a byte, and how many bytes a quantised tensor takes.

Transformer Engine's order: byte j of a row = code[2j] | code[2j + 1] << 4. Paper section 2: NVFP4 takes
"about half" the memory of FP8; `stored_bytes` measures it.

Does not: swizzle scales into the layout a particular GEMM kernel wants.
"""

from __future__ import annotations

import torch
from torch import Tensor

from repro.numerics.quantize import Quantized


def pack_codes(codes: Tensor) -> Tensor:
    """uint8 codes 0..15 [..., K] to packed bytes [..., K/2]. Raises ValueError for an odd K or a code > 15."""
    if codes.shape[-1] % 2:
        raise ValueError(f"two codes share a byte: K must be even, got {codes.shape[-1]}")
    if codes.numel() and int(codes.max()) > 15:
        raise ValueError(f"code {int(codes.max())} does not fit 4 bits")
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack_codes(packed: Tensor) -> Tensor:
    """Packed bytes [..., K/2] back to codes [..., K]; the inverse of `pack_codes`."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def stored_bytes(quantized: Quantized) -> int:
    """Bytes of codes (packed where they have 4 bits), scales, and amax where it is part of the value.

    Scales count once per row and block, as they are kept. Raises as `pack_codes` does.
    """
    four_bit = quantized.spec.format.element.bits == 4
    codes = pack_codes(quantized.codes) if four_bit else quantized.codes
    amax_bytes = quantized.amax.nbytes if quantized.spec.format.tensor_scale else 0
    return codes.nbytes + quantized.scales.nbytes + amax_bytes
