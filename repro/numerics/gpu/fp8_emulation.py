"""The product of FP8 operands with block scales on a GPU that has none of its own, or whose sums are not wanted.

    D [m, n] = round(sum over blocks of 128 of s_a s_b (sum within the block of code_a code_b)),   a [m, k], b [n, k]

Paper (arXiv 2509.25149) Appendix A.1. E4M3 numbers are BF16 numbers and their products are exact in FP32, so BF16
tensor cores, which accumulate in FP32, give a block's sum up to the order of its additions; scales and the sum over
blocks are FP32. Measured on an H200 against exact sums (k = 4096): relative error 1.1e-7, where an FP32 product of
operands multiplied with their scales errs by 1.1e-6 and the card's own FP8 product by 1.3e-4.

Does not: quantise (`fp8_operand.py`), or choose tiles by timing.
"""

# ruff: noqa: ANN001, ANN201
# Triton functions: the types of their arguments are Triton's.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from repro.numerics.gpu.arithmetic import INTERPRETED
from repro.numerics.gpu.fp8_operand import BLOCK, Fp8Operand

#: Rows of a and of b that a program multiplies; b's are one square block.
_ROWS = 128
#: Programs that are neighbours in time share this many panels of a, which then stay in the cache.
_GROUP = 8


@triton.jit
def product_kernel(
    a, b, scales_a, scales_b, out, m, n, stride_a, stride_b_outer, stride_b_block,
    NUM_BLOCKS: tl.constexpr, SQUARE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One program, one tile [ROWS, BLOCK] of D. a, b: descriptors; scales_a [NUM_BLOCKS, m] with row stride stride_a.

    NUM_BLOCKS is a constant because the interpreter's `range` takes no run-time numbers.
    """
    program = tl.program_id(0)
    panels_m, panels_n = tl.cdiv(m, ROWS), tl.cdiv(n, BLOCK)
    group = program // (GROUP * panels_n) * GROUP
    size = min(panels_m - group, GROUP)
    within = program % (GROUP * panels_n)
    row, column = (group + within % size) * ROWS, within // size * BLOCK
    rows, columns = row + tl.arange(0, ROWS), column + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for block in range(NUM_BLOCKS):
        left, right = a.load([row, block * BLOCK]), b.load([column, block * BLOCK])
        s_a = tl.load(scales_a + block * stride_a + rows, mask=rows < m, other=0.0)
        within_block = tl.dot(left, right.T, input_precision="ieee")
        if SQUARE:
            s_b = tl.load(scales_b + column // BLOCK * stride_b_outer + block * stride_b_block)
            total += within_block * (s_a * s_b)[:, None]
        else:
            at = scales_b + columns * stride_b_outer + block * stride_b_block
            s_b = tl.load(at, mask=columns < n, other=0.0)
            total += within_block * (s_a[:, None] * s_b[None, :])
    pointers = out + rows[:, None].to(tl.int64) * n + columns[None, :]
    tl.store(pointers, total.to(out.dtype.element_ty), mask=(rows < m)[:, None] & (columns < n)[None, :])


def emulated_product(a: Fp8Operand, b: Fp8Operand, *, dtype: torch.dtype) -> Tensor:
    """a b^T [m, n] in `dtype` (bfloat16 or float32), exact up to FP32 additions; arguments as `block_scaled_product`.

    Only b may have square blocks.
    """
    assert a.shape[1] == b.shape[1], (a.shape, b.shape)
    assert not a.is_square
    (m, size), n = a.codes.shape, b.codes.shape[0]
    # Triton's interpreter takes the bits of BF16 operands of a dot for integers.
    carrier = torch.float32 if INTERPRETED.value else torch.bfloat16
    left, right = a.codes.to(carrier), b.codes.to(carrier)
    out = torch.empty(m, n, dtype=torch.float32 if INTERPRETED.value else dtype, device=left.device)
    strides = b.scales.stride() if b.is_square else b.scales.stride()[::-1]
    with torch.cuda.device_of(left):  # nothing for the CPU of the interpreter
        product_kernel[(-(-m // _ROWS) * -(-n // BLOCK),)](
            TensorDescriptor.from_tensor(left, [_ROWS, BLOCK]),
            TensorDescriptor.from_tensor(right, [BLOCK, BLOCK]),
            a.scales, b.scales, out, m, n, a.scales.stride(0), *strides,
            NUM_BLOCKS=size // BLOCK, SQUARE=b.is_square, ROWS=_ROWS, BLOCK=BLOCK, GROUP=_GROUP,
            num_warps=8, num_stages=3,
        )  # fmt: skip
    return out[: a.shape[0], : b.shape[0]].to(dtype)
