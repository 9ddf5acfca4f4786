"""Rounding FP32 numbers to the codes of an element format, and reading codes back.

Paper section 4.4 (stochastic rounding of gradients); the hardware's `cvt.rn` and `cvt.rs` with satfinite.
One rule for E2M1, E4M3 and E5M2, with step(a) the distance of neighbouring numbers at magnitude a:

    rne   q = step(a) * round_half_even(a / step(a))
    sr    t = fma(r / 256, step(a), a) in FP32,  r one of 256 random bytes
          q = step(a) * floor(t / step(a)),      so P(up) = floor(256 * fraction) / 256
    (the hardware's software form cuts to step(t), the same: t stays below the second next number)

    a = min(|y|, max): both saturate, neither gives Inf.  The sign is kept.
    NaN -> code 0, as in Transformer Engine's reference; block scales carry the NaN (`scaling.py`).
    -0.0 -> code 0 in E2M1 (as there), its own code in FP8. A negative y that rounds to zero -> minus zero.

Does not: scale. Formats without zero (UE8M0) are scales only and have their own rule in `scaling.py`.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from repro.numerics.formats import ElementFormat

_FP32_MANTISSA_BITS = 23
_FP32_BIAS = 127


def _exponent_and_step(a: Tensor, element: ElementFormat) -> tuple[Tensor, Tensor]:
    """Per magnitude: exponent above the smallest normal one (int32, >= 0), and step(a) (float32)."""
    exponent = (a.view(torch.int32) >> _FP32_MANTISSA_BITS) - _FP32_BIAS
    exponent = exponent.clamp(min=element.min_exponent)
    step_field = exponent - element.mantissa_bits + _FP32_BIAS
    return exponent - element.min_exponent, (step_field << _FP32_MANTISSA_BITS).view(torch.float32)


def round_to_codes(y: Tensor, element: ElementFormat, random_bits: Tensor | None = None) -> Tensor:
    """Codes of `element` nearest to y: uint8, same shape. Stochastic when `random_bits` (uint8) are given.

    y is float32 of any magnitude and saturates at the element's maximum.
    """
    assert y.dtype == torch.float32, y.dtype
    assert element.has_zero, f"{element.name} does not hold elements"
    assert element.bits <= 8, f"codes of {element.name} do not fit a byte"
    y = y.nan_to_num(nan=0.0)
    a = y.abs().clamp(max=element.max)
    exponent, step = _exponent_and_step(a, element)
    if random_bits is None:
        # A quotient by a power of two is exact; torch.round takes ties to even. Rounding up to the next
        # power of two carries into the exponent of the code by itself.
        num_steps = (a / step).round()
    else:
        # The product is exact (8 bits times a power of two), so the sum rounds once, as an fma does. From the
        # maximum it goes less than a step up, so that cutting gives the maximum again.
        t = a + random_bits.float() / 256.0 * step
        num_steps = (t / step).floor()
    code = num_steps.int() + (exponent << element.mantissa_bits)
    negative = torch.signbit(y) if element.keeps_negative_zero else y < 0
    return (code | (negative.int() * element.sign_bit)).to(torch.uint8)


@functools.cache
def _values_by_code(element: ElementFormat, device: torch.device) -> Tensor:
    values = [element.decode(code) for code in range(1 << element.bits)]
    with torch.inference_mode(False):  # an inference tensor kept here could not be used in training
        return torch.tensor(values, dtype=torch.float32, device=device)


def decode(codes: Tensor, element: ElementFormat) -> Tensor:
    """The numbers that uint8 `codes` stand for: float32, same shape, exact. Specials give inf and nan."""
    return _values_by_code(element, codes.device)[codes.int()]
