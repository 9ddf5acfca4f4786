"""Scales: from the amax of a tensor and of its blocks to the stored block scales.

Paper (arXiv 2509.25149) Appendix B; Transformer Engine >= 2.14's Python NVFP4 reference for the order of
the FP32 operations. fl32(..) rounds to FP32; b is a block's amax, a the tensor's, m the element's maximum.

two_level (NVFP4: m = 6, scales in E4M3 with maximum 448)
    s_enc = min(fl32(2688 / a), FP32 max), or 1 if that is 0 (a infinite);   s_dec = fl32(1 / s_enc)
    d     = fl32(b * fl32(s_enc * fl32(1/6)))      order "te"
            fl32(fl32(b / 6) * s_enc)              order "paper", Appendix B as printed
    S     = E4M3(min(d, 448))                      round to nearest even, subnormals kept
    y     = fl32(x * e),  e = min(fl32(1 / fl32(S * s_dec)), FP32 max)
power_of_two_up (MX)
    S     = 2^ceil(log2(fl32(b / m))), exponent clamped to -127..127;    y = fl32(x * fl32(1 / S)), exact
    unless it underflows. The exponent is read from the bits: a rounded log2 would be one too low just
    above a power of two. A zero block has S = 2^-127.
amax_over_max (FP8 blocks of the paper's baseline, section A.1)
    S     = max(fl32(b / 448), 2^-149), kept in FP32;                    y = fl32(x / S)
    The floor keeps 0/0 and x/0 away and decides nothing else; dividing keeps subnormal scales right, whose
    reciprocal would be infinite.

Non-finite input is never hidden: NaN goes through every min, max and clamp here, so that a NaN makes its
block's scale NaN (the whole tensor's in two_level formats), and an infinite amax stays infinite in `amax`.

Does not: find amax values (`quantize.py`), round elements (`rounding.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from repro.numerics.formats import FP32_MAX, FP32_MIN_SUBNORMAL, QuantSpec
from repro.numerics.rounding import decode, round_to_codes


@dataclass(frozen=True)
class BlockScales:
    """The scales of all blocks, shape [block rows, block columns]."""

    #: As stored: uint8 codes of the scale's format, or float32 where that format is FP32.
    stored: Tensor
    #: float32: what an element's value is multiplied with.
    decode: Tensor
    #: float32: what brings x onto the element's grid, by `to_grid`.
    encode: Tensor
    #: Whether x is divided by `encode` (an FP32 scale) or multiplied with it.
    divides: bool

    def to_grid(self, x: Tensor) -> Tensor:
        """y = x * e or x / S in FP32, for x of shape [block rows, rows, block columns, columns]."""
        encode = self.encode[:, None, :, None]
        return x / encode if self.divides else x * encode


def fp32(value: float, like: Tensor) -> Tensor:
    """A Python number as an FP32 scalar tensor beside `like`.

    Needed wherever a division must be one: PyTorch turns `2688.0 / t` into a reciprocal and a product, and
    on CUDA also `t / 6.0`, which round twice.
    """
    return torch.tensor(value, dtype=torch.float32, device=like.device)


def tensor_scales(amax: Tensor, spec: QuantSpec) -> tuple[Tensor, Tensor]:
    """(s_enc, s_dec) of a two-level format, float32 like `amax`. amax 0 gives FP32 max and its reciprocal."""
    s_enc = (fp32(spec.format.tensor_max, amax) / amax).clamp(max=FP32_MAX)
    s_enc = torch.where(s_enc == 0, torch.ones_like(s_enc), s_enc)
    return s_enc, fp32(1.0, amax) / s_enc


def gemm_scale(amax: Tensor, spec: QuantSpec) -> Tensor | None:
    """What a GEMM's output is multiplied with for this operand: fl32(a / 2688), float32; None without a
    tensor scale.

    Not below 1 / FP32 max: under amax 7.9e-36, where s_enc is clamped, that and not a / 2688 is the inverse
    of what the elements were encoded with. (`Quantized.dequantize` follows Transformer Engine's tests, which
    ignore this.) A non-finite amax gives a non-finite scale.
    """
    if not spec.format.tensor_scale:
        return None
    smallest = fp32(1.0, amax) / fp32(FP32_MAX, amax)
    return torch.maximum(amax / fp32(spec.format.tensor_max, amax), smallest)


def block_scales(block_amax: Tensor, amax: Tensor, spec: QuantSpec) -> BlockScales:
    """Scales of blocks with amax `block_amax` (float32 [block rows, block columns]) in a tensor with amax
    `amax` (float32 scalar)."""
    return _RULES[spec.format.scale_rule](block_amax, amax, spec)


def _two_level(block_amax: Tensor, amax: Tensor, spec: QuantSpec) -> BlockScales:
    s_enc, s_dec = tensor_scales(amax, spec)
    element_max = fp32(spec.format.element.max, amax)
    if spec.scale_order == "te":
        d = block_amax * (s_enc * (fp32(1.0, amax) / element_max))
    else:
        d = (block_amax / element_max) * s_enc
    stored = round_to_codes(d.clamp(max=spec.format.scale.max), spec.format.scale)
    # A code has no room for "NaN in, code 0 out" here: a block of unknown size must not look like zeros.
    stored = torch.where(d.isnan(), spec.format.scale.code_of_max + 1, stored).to(torch.uint8)
    value = decode(stored, spec.format.scale)
    encode = (fp32(1.0, amax) / (value * s_dec)).clamp(max=FP32_MAX)
    return BlockScales(stored, value, encode, divides=False)


def _power_of_two_up(block_amax: Tensor, amax: Tensor, spec: QuantSpec) -> BlockScales:
    ratio = block_amax / fp32(spec.format.element.max, amax)
    field, fraction = ratio.view(torch.int32) >> 23, ratio.view(torch.int32) & 0x7FFFFF
    # Biased exponent rounded up. An FP32 subnormal lies below 2^-126 (code 1); 2^-127 is its bit 22.
    code = torch.where(field > 0, field + (fraction > 0), (fraction > 1 << 22).int())
    code = code.clamp(max=spec.format.scale.code_of_max)
    stored = torch.where(ratio.isnan(), spec.format.scale.code_of_max + 1, code).to(torch.uint8)
    value = decode(stored, spec.format.scale)
    return BlockScales(stored, value, fp32(1.0, amax) / value, divides=False)


def _amax_over_max(block_amax: Tensor, amax: Tensor, spec: QuantSpec) -> BlockScales:
    scale = (block_amax / fp32(spec.format.element.max, amax)).clamp(min=FP32_MIN_SUBNORMAL)
    return BlockScales(scale, scale, scale, divides=True)


_RULES = {
    "two_level": _two_level,
    "power_of_two_up": _power_of_two_up,
    "amax_over_max": _amax_over_max,
}
