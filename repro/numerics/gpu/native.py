"""Parts of `arithmetic.py` in a GPU's own instructions (inline PTX), two numbers at a time; the bits are the same.

    native_e2m1    numbers rounded to E2M1, times the scale of their block; Hopper and later (NATIVE of the kernels)
    native_fp32    BF16 numbers as FP32; any GPU

Triton's interpreter runs neither. On a CPU tests run what the compiler makes of kernels with the first
(`tests/numerics/test_gpu_ptx.py`); both are held to the reference on a GPU.

Does not: say what the bits are (`arithmetic.py` does), or take words of two BF16 numbers (`words.py`).
"""

# ruff: noqa: ANN001, ANN201
# Triton functions: the types of their arguments are Triton's.
from __future__ import annotations

import triton
import triton.language as tl

_RNE = tl.constexpr("""{
.reg .f32 y<2>, m<2>, q<2>;
.reg .b32 e<2>, p;
mul.rn.f32 y0, $1, $3;
mul.rn.f32 y1, $2, $4;
min.NaN.xorsign.abs.f32 y0, y0, 0f40C00000;
min.NaN.xorsign.abs.f32 y1, y1, 0f40C00000;
abs.f32 m0, y0;
abs.f32 m1, y1;
max.f32 m0, m0, 0f3F800000;
max.f32 m1, m1, 0f3F800000;
and.b32 e0, m0, 0x7F800000;
and.b32 e1, m1, 0x7F800000;
fma.rn.f32 q0, e0, 0f4AC00000, y0;
fma.rn.f32 q1, e1, 0f4AC00000, y1;
fma.rn.f32 q0, e0, 0fCAC00000, q0;
fma.rn.f32 q1, e1, 0fCAC00000, q1;
fma.rn.f32 q0, y0, 0f00000200, q0;
fma.rn.f32 q1, y1, 0f00000200, q1;
cvt.rn.bf16x2.f32 p, q1, q0;
mul.rn.bf16x2 $0, p, $5;
}""")

_SR = tl.constexpr("""{
.reg .f32 y<2>, m<2>, q<2>;
.reg .b32 e<2>, p;
mul.rn.f32 y0, $1, $3;
mul.rn.f32 y1, $2, $4;
min.NaN.xorsign.abs.f32 y0, y0, 0f40C00000;
min.NaN.xorsign.abs.f32 y1, y1, 0f40C00000;
max.xorsign.abs.f32 m0, y0, 0f3F800000;
max.xorsign.abs.f32 m1, y1, 0f3F800000;
and.b32 e0, m0, 0xFF800000;
and.b32 e1, m1, 0xFF800000;
fma.rn.f32 q0, $6, e0, y0;
fma.rn.f32 q1, $7, e1, y1;
fma.rz.f32 q0, e0, 0f4A800000, q0;
fma.rz.f32 q1, e1, 0f4A800000, q1;
fma.rn.f32 q0, e0, 0fCA800000, q0;
fma.rn.f32 q1, e1, 0fCA800000, q1;
fma.rn.f32 q0, y0, 0f00000200, q0;
fma.rn.f32 q1, y1, 0f00000200, q1;
cvt.rn.bf16x2.f32 p, q1, q0;
mul.rn.bf16x2 $0, p, $5;
}""")


@triton.jit
def native_e2m1(v, encode, scale, noise, STOCHASTIC: tl.constexpr):
    """RoundE2M1(v * encode) * scale in BF16: `arithmetic.round_to_element` in Hopper's own instructions.

    y is clamped to 6 (NaN stays), E = 2^exponent of max(|y|, 1), step E / 2.
    rne: + 1.5 * 2^22 E and off again. Adding y * 2^-140 then gives a zero the sign of a y that is not zero; it is
         below BF16's smallest number, and leaves any other number as it is.
    sr:  E has the sign of y; the sum of y and noise E, which rounds as the reference's does, is cut by adding 2^22 E
         rounded toward zero, and off again.
    The product with the scale is exact in BF16, as `Operand` says.
    """
    scale = scale.to(tl.bfloat16)
    if STOCHASTIC:
        return tl.inline_asm_elementwise(
            _SR, "=r,r,r,r,r,r,r,r", [v, encode, scale, noise], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    return tl.inline_asm_elementwise(
        _RNE, "=r,r,r,r,r,r", [v, encode, scale], dtype=tl.bfloat16, is_pure=True, pack=2
    )


@triton.jit
def native_fp32(x):
    """BF16 numbers as FP32, one instruction each."""
    return tl.inline_asm_elementwise(
        "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xFFFF0000;", "=&r,=r,r", [x],
        dtype=tl.float32, is_pure=True, pack=2,
    )  # fmt: skip
