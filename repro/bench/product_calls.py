"""How each format is multiplied: the calls whose time repro.bench.products takes, for y [M, N] = x [M, K] w [N, K]^T.

    NativeCalls          a library multiplies in the format: torch, and for FP8 blocks the kernel that training uses
    emulated_product     operands are quantised on the fly, and multiplied in a wider format
    card_fp8_product     FP8 blocks on a card that multiplies them: operands at hand, or quantised on the fly

A native call that the card or the library cannot make raises; none falls back to another way.

Does not: time a call, or compare it with BF16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from repro.bench.machine import Machine
from repro.bench.rows import MissingError
from repro.numerics.formats import FP8_BLOCK, MXFP4, MXFP8, NVFP4, BlockFormat, QuantSpec
from repro.numerics.gpu.product import scaled_product
from repro.numerics.operand import make_operand

NEEDS_BLACKWELL = "needs compute capability 10.0 or 10.3: its tensor cores multiply FP4 and MX formats"


def fp8_obstacle(device: torch.device) -> str | None:
    """Why FP8 blocks are not multiplied by the card; None where they are."""
    if device.type != "cuda":
        return "needs compute capability 9.x: its tensor cores take FP8 with block scales"
    from repro.numerics.gpu.fp8_product import obstacle  # needs triton

    reason = obstacle(device)
    return reason and f"not by this card: {reason}"


def card_fp8_product(x: Tensor, w: Tensor) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """The card's product of x [M, K] in 1x128 and w [N, K] in 128x128 blocks: alone, and quantising on the fly."""
    from repro.numerics.gpu.fp8_operand import fp8_copies
    from repro.numerics.gpu.fp8_product import block_scaled_product

    def operands() -> tuple[Any, Any]:
        return fp8_copies(x).rows, fp8_copies(w, square=True).rows

    made = operands()
    return (
        lambda: block_scaled_product(*made, dtype=torch.bfloat16),
        lambda: block_scaled_product(*operands(), dtype=torch.bfloat16),
    )


def emulated_product(x: Tensor, w: Tensor, form: BlockFormat) -> Tensor:
    """x [M, K] w [N, K]^T with both operands quantised along K, as the training layer multiplies them; BF16 [M, N]
    where BF16 operands are exact on a GPU, else float32."""
    spec = QuantSpec(form, form.tiles_1d)
    a, b = make_operand(x, spec, along=1), make_operand(w, spec, along=1)
    scales = [scale for scale in (a.scale, b.scale) if scale is not None]
    if a.values.is_cuda and a.values.dtype == torch.bfloat16:
        factor = torch.ones((), device=x.device) if not scales else scales[0] * scales[1]
        product = scaled_product(a.values, b.values.t(), factor, dtype=torch.bfloat16)
        if product is not None:
            return product
    product = a.values.float() @ b.values.float().t()
    for scale in scales:
        product *= scale
    return product


class NativeCalls:
    """Operands of one shape (M, N, K), and the calls that multiply them in a format.

    A call is made with its operands ready, so that only the product is timed.
    """

    def __init__(self, machine: Machine, shape: tuple[int, int, int]) -> None:
        self.machine, self.shape = machine, shape

    def by_format(self) -> dict[str, Callable[[], Callable[[], Tensor]]]:
        """Format -> what makes its call; making it raises MissingError where the machine cannot."""
        return {
            "fp32": self.fp32,
            "fp8_e4m3": self.fp8_tensor_scale,
            FP8_BLOCK.name: self.fp8_block,
            MXFP8.name: self.mxfp8,
            MXFP4.name: self.mxfp4,
            NVFP4.name: self.nvfp4,
        }

    def operands(self) -> tuple[Tensor, Tensor]:
        m, n, k = self.shape
        return self.machine.randn(m, k), self.machine.randn(n, k, seed=1)

    def fp32(self) -> Callable[[], Tensor]:
        x, w = (operand.float() for operand in self.operands())
        return lambda: x @ w.t()

    def fp8_tensor_scale(self) -> Callable[[], Tensor]:
        """One scale a tensor: the rate of the multiplication, which is what Table 1 is about."""
        x, w = (operand.to(torch.float8_e4m3fn) for operand in self.operands())
        one = torch.ones((), device=self.machine.device)
        return lambda: torch._scaled_mm(x, w.t(), one, one, out_dtype=torch.bfloat16)

    def fp8_block(self) -> Callable[[], Tensor]:
        if reason := fp8_obstacle(self.machine.device):
            raise MissingError(reason)
        return card_fp8_product(*self.operands())[0]

    def mxfp8(self) -> Callable[[], Tensor]:
        self.require_blackwell()
        return self.scaled(torch.float8_e4m3fn, torch.float8_e8m0fnu, MXFP8)

    def nvfp4(self) -> Callable[[], Tensor]:
        self.require_blackwell()
        return self.scaled(torch.float4_e2m1fn_x2, torch.float8_e4m3fn, NVFP4)

    def mxfp4(self) -> Callable[[], Tensor]:
        self.require_blackwell()
        return self.scaled(torch.float4_e2m1fn_x2, torch.float8_e8m0fnu, MXFP4)

    def require_blackwell(self) -> None:
        if not self.machine.has_fp4:
            raise MissingError(NEEDS_BLACKWELL)

    def scaled(self, element: torch.dtype, scale: torch.dtype, form: BlockFormat) -> Callable[[], Tensor]:
        """A block-scaled product of random codes: its rate does not depend on how scales are laid out."""
        m, n, k = self.shape
        num_bytes = k * form.element.bits // 8
        generator = torch.Generator(self.machine.device).manual_seed(0)

        def draw(rows: int, columns: int, high: int) -> Tensor:
            return torch.randint(
                high, (rows, columns), dtype=torch.uint8, device=self.machine.device, generator=generator
            )

        # Bytes below 0x78 are finite in E4M3, and any byte is two E2M1 codes.
        high = 256 if form.element.bits == 4 else 0x78
        x, w = (draw(rows, num_bytes, high).view(element) for rows in (m, n))
        blocks = k // form.tiles_1d[1]
        scales = [torch.ones(rows * blocks, device=self.machine.device).to(scale) for rows in (m, n)]
        return lambda: torch._scaled_mm(x, w.t(), scales[0], scales[1], out_dtype=torch.bfloat16)
