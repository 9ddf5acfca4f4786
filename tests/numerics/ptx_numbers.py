"""Numbers as PTX's instructions see them: NumPy arrays of bits, and what rounding or a comparison makes of them."""

from __future__ import annotations

import numpy as np

U32, U64, F32 = np.uint32, np.uint64, np.float32
HALF, SHIFT = U32(0xFFFF), U32(16)


def bits_of(x):
    return np.ascontiguousarray(x, dtype=F32).view(U32)


def halves(words):
    """Two BF16 numbers of each word."""
    return (words << SHIFT).view(F32), (words & ~HALF).view(F32)


def to_bf16(x):
    """Bits of the nearest BF16 number, ties to even."""
    bits = bits_of(x).astype(U64)
    nearest = ((bits + U64(0x7FFF) + ((bits >> U64(16)) & U64(1))) >> U64(16)).astype(U32)
    return np.where(np.isnan(x), U32(0x7FFF), nearest)


def word(low, high):
    return (low & HALF) | (high << SHIFT)


def toward_zero(x):
    """FP64 to FP32."""
    nearest = x.astype(F32)
    return np.where(np.abs(nearest) > np.abs(x), np.nextafter(nearest, F32(0)), nearest)


def f16_toward_zero(x):
    """Bits of FP16; beyond its largest number that number."""
    magnitude = np.abs(x).astype(np.float64)
    subnormal = (np.minimum(magnitude, 1) * 2.0**24).astype(np.int64)
    normal = np.minimum((bits_of(np.abs(x)) >> U32(13)).astype(np.int64) - (112 << 10), 0x7BFF)
    code = np.where(magnitude < 2.0**-14, subnormal, normal).astype(U32)
    return code | ((bits_of(x) >> SHIFT) & U32(0x8000))


def extreme(kind, a, b, flags):
    x, y = (np.abs(a), np.abs(b)) if "abs" in flags else (a, b)
    pick = {
        ("max", True): np.maximum,
        ("max", False): np.fmax,
        ("min", True): np.minimum,
        ("min", False): np.fmin,
    }
    result = pick[kind, "NaN" in flags](x, y)
    if "xorsign" in flags:
        result = np.where(np.signbit(a) ^ np.signbit(b), -result, result)
    return result
