"""The product of two emulated operands: what a GEMM of quantised tensors gives, wherever it is computed.

Section 4 of arXiv 2509.25149. Operands hold code value times block scale, exact in their dtype; products accumulate
in FP32 and meet the FP32 tensor scales afterwards. m, n: rows and columns of the result, k: the contracted size.

Does not: reproduce the summation order of FP4 tensor cores, or take FP8 operands with block scales
(repro.recipes.fp8_linear).
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from repro.numerics.gpu.product import scaled_product
from repro.numerics.operand import Operand


def operand_product(a: Operand, b: Operand, left: Tensor, right: Tensor, *, dtype: torch.dtype) -> Tensor:
    """left [m, k] right [k, n] accumulated in FP32, times the tensor scales of a and b, rounded once to `dtype`.

    `left` and `right` are the operands' values or their transposes. On a GPU a product of BF16 values takes the
    scales as one FP32 factor, fl32(s_a s_b), on its way out (repro.numerics.gpu.product); that factor loses bits
    where the two tensors' amaxes multiply to less than 8.5e-32, which a CPU's product does not. A BF16 operand beside
    an FP32 one becomes FP32.
    """
    if left.dtype == right.dtype == torch.bfloat16 and left.is_cuda:
        out = scaled_product(left, right, _factor(a, b, left.device), dtype=dtype)
        if out is not None:
            return out
        product = torch.mm(left, right, out_dtype=torch.float32)
    else:
        check_fp32_products(left.device)
        product = torch.mm(left.float(), right.float())
    # One after the other: their own product can underflow FP32.
    for scale in (a.scale, b.scale):
        if scale is not None:
            product.mul_(scale)
    return product.to(dtype)


def _factor(a: Operand, b: Operand, device: torch.device) -> Tensor:
    if a.scale is not None and b.scale is not None:
        return a.scale * b.scale
    if a.scale is None and b.scale is None:
        return _one(device)
    return a.scale if b.scale is None else b.scale


@functools.cache
def _one(device: torch.device) -> Tensor:
    return torch.ones((), dtype=torch.float32, device=device)  # its four bytes are read as such


def check_fp32_products(device: torch.device) -> None:
    """Raises ValueError where PyTorch is told to compute FP32 products of such a device in TF32 or BF16."""
    backend = torch.backends.cuda.matmul if device.type == "cuda" else torch.backends.mkldnn.matmul
    precision = getattr(backend, "fp32_precision", None)
    if precision is None and device.type == "cuda":  # PyTorch before 2.9
        precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    if precision in ("tf32", "bf16"):
        raise ValueError(
            f"FP32 products are computed in {precision.upper()} here, and operands in FP32 need all bits: "
            'torch.set_float32_matmul_precision("highest")'
        )


def as_written(device: torch.device) -> AbstractContextManager[object]:
    """Products in the dtypes that stand here: autocast, where it is on, would round FP32 operands to its own."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
