"""The card's own FP8 matrix product with block scales, and why it may not be there.

    D [m, n] = round(sum over blocks of 128 of s_a s_b (sum within the block of code_a code_b)),   a [m, k], b [n, k]

Paper (arXiv 2509.25149) Appendix A.1. PyTorch hands it to cuBLASLt (12.9 or later), which has it for compute
capability 9.x alone: 1x128 by 128x128 blocks, and 1x128 by 1x128, both operands row by row along k; output BF16 or
FP32.

What it adds up is not what FP32 adds up: Hopper's FP8 tensor cores align the products of an instruction and keep
fewer bits of their sum than FP32 has; FP32 takes over from block to block. Measured on an H200 against exact sums,
operands of normal numbers, k from 4096 to 20480, both kinds of blocks: relative error 1.27e-4 and 4e-5 toward zero on
average. Rounding the result to BF16 costs 1.66e-3 (with it: 1.67e-3), quantisation 3.7e-2.

Does not: emulate (`Fp8Operand.values` and an FP32 product do).
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from repro.numerics.gpu.fp8_operand import BLOCK, Fp8Operand


def block_scaled_product(a: Fp8Operand, b: Fp8Operand, *, dtype: torch.dtype) -> Tensor:
    """a b^T [m, n] in `dtype` (bfloat16 or float32) by the card's product.

    a [m, k] and b [n, k] of equal k on one GPU; at most one of them with square blocks. Contiguous where n is a
    multiple of 16. Raises RuntimeError where cuBLASLt refuses (`obstacle` says so beforehand).
    """
    assert a.shape[1] == b.shape[1], (a.shape, b.shape)
    scaling = _scaling()
    out = torch.nn.functional.scaled_mm(
        a.codes,
        b.codes.t(),
        a.scales.t(),
        scaling[a.is_square],
        b.scales.t(),
        scaling[b.is_square],
        output_dtype=dtype,
    )
    return out[: a.shape[0], : b.shape[0]]


@functools.cache
def _scaling() -> tuple:
    """PyTorch's names of 1x128 and 128x128 blocks."""
    kinds = torch.nn.functional.ScalingType
    return kinds.BlockWise1x128, kinds.BlockWise128x128


@functools.cache
def obstacle(device: torch.device) -> str | None:
    """Why the card's product cannot be used on a device; None where a trial of it gives what it should.

    The trial waits for the device: ask once before a CUDA graph is captured.
    """
    if device.type != "cuda":
        return f"{device.type} has no FP8 product"
    capability = torch.cuda.get_device_capability(device)
    if capability[0] != 9:
        return f"cuBLASLt has it for compute capability 9.x, this is {capability[0]}.{capability[1]}"
    if not hasattr(torch.nn.functional, "scaled_mm"):
        return f"PyTorch {torch.__version__} has no torch.nn.functional.scaled_mm"
    try:
        wrong = [b.is_square for a, b, expected in _trials(device) if not _gives(a, b, expected)]
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        return str(error).splitlines()[0]
    return f"its results are wrong for blocks {'128x128' if wrong[0] else '1x128'}" if wrong else None


def _trials(device: torch.device) -> list[tuple[Fp8Operand, Fp8Operand, Tensor]]:
    """Operands of small integers and of scales that are powers of two, five blocks long: sums exact in any order."""
    outer, size = 2 * BLOCK, 5 * BLOCK
    generator = torch.Generator().manual_seed(1)

    def operand(square: bool) -> Fp8Operand:
        codes = torch.randint(-4, 5, (outer, size), generator=generator).to(device, torch.float8_e4m3fn)
        shape = (outer // BLOCK, 8) if square else (size // BLOCK, outer)
        scales = 2.0 ** torch.randint(-3, 4, shape, generator=generator).to(device, torch.float32)
        return Fp8Operand(codes, scales, square, (outer, size))

    pairs = [(operand(False), operand(square)) for square in (False, True)]
    return [(a, b, a.values() @ b.values().t()) for a, b in pairs]


def _gives(a: Fp8Operand, b: Fp8Operand, expected: Tensor) -> bool:
    return torch.equal(block_scaled_product(a, b, dtype=torch.float32), expected)
