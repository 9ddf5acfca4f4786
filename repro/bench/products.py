"""Table 1's numbers: rates of matrix products, and bytes of quantised tensors.

The paper's Table 1 gives the rates of Blackwell tensor cores (4x and 6x BF16 for FP4); rows here measure
y [M, N] = x [M, K] w [N, K]^T on the machine at hand:

    product/FORMAT/native     a library multiplies in this format: torch, or what training uses where torch does not
    product/FORMAT/emulated   operands are quantised on the fly, and multiplied in a wider format unless the card has
                              FP8 products with block scales: what training costs
    storage/FORMAT/TILE       bytes that packing really stores, codes and scales, against the format's record

`ratio` of a product is BF16's time over its own, which is the ratio of rates.

Does not: drive FP4 tensor cores by kernels of its own: native rows take what torch and Transformer Engine offer.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repro.bench.machine import Machine
from repro.bench.rows import Case, Measurement, MissingError, first_line
from repro.numerics.formats import BLOCK_FORMATS, FP8_BLOCK, MXFP4, MXFP8, NVFP4, BlockFormat, QuantSpec
from repro.numerics.gpu.product import scaled_product
from repro.numerics.operand import make_operand
from repro.numerics.packing import make_packed

#: Large enough that a product dwarfs its call, small enough for seconds on one core and tenths on a GPU.
CPU_SHAPE = (1024, 1024, 1024)
GPU_SHAPE = (8192, 8192, 8192)
#: Rows and columns of the tensor whose packed bytes are counted; ratios do not depend on it.
STORED_SHAPE = (1024, 1024)

NEEDS_BLACKWELL = "needs compute capability 10.0 or 10.3: its tensor cores multiply FP4 and MX formats"


def product_cases(machine: Machine, *, shape: tuple[int, int, int] | None = None) -> list[Case]:
    """One case a format and kind, BF16 first; `shape` (M, N, K) defaults to one that fits the device."""
    bench = _Products(machine, shape or (GPU_SHAPE if machine.is_gpu else CPU_SHAPE))
    native: dict[str, Callable[[], Callable[[], Tensor]]] = {
        "fp32": bench.fp32,
        "fp8_e4m3": bench.fp8_tensor_scale,
        FP8_BLOCK.name: bench.fp8_block,
        MXFP8.name: bench.mxfp8,
        MXFP4.name: bench.mxfp4,
        NVFP4.name: bench.nvfp4,
    }
    words = "x".join(map(str, bench.shape))
    cases = [Case("product/bf16/native", f"product {words}, bf16", bench.bf16)]
    cases += [
        Case(
            f"product/{name}/native", f"product {words}, {name}", lambda n=name, p=prepare: bench.native(n, p)
        )
        for name, prepare in native.items()
    ]
    return cases + [
        Case(
            f"product/{form.name}/emulated",
            f"product {words}, {form.name} emulated",
            lambda form=form: bench.emulated(form),
        )
        for form in (FP8_BLOCK, MXFP8, MXFP4, NVFP4)
    ]


def storage_cases(machine: Machine) -> list[Case]:
    """One case a block format: bytes of a packed tensor, scales and tensor scale included."""
    return [
        Case(
            f"storage/{form.name}/{'x'.join(map(str, form.tiles_1d))}",
            f"bytes of {STORED_SHAPE[0]}x{STORED_SHAPE[1]} values, {form.name}",
            lambda form=form: stored(machine.randn(*STORED_SHAPE), form),
            unit="bytes",
        )
        for form in BLOCK_FORMATS.values()
    ]


def stored(x: Tensor, form: BlockFormat) -> Measurement:
    """Bytes of x packed; `over_fp8` in the details is the ratio to FP8 blocks of the same x."""
    num_bytes, fp8_bytes = (make_packed(x, QuantSpec(f, f.tiles_1d)).nbytes for f in (form, FP8_BLOCK))
    floor = form.bits_per_value() * x.numel() / 8 + (4 if form.tensor_scale else 0)
    return Measurement(
        measured=num_bytes,
        floor=floor,
        floor_from="bits of the format's record",
        ratio=floor / num_bytes,
        details={
            "num_values": x.numel(),
            "bits_per_value": 8 * num_bytes / x.numel(),
            "over_fp8": num_bytes / fp8_bytes,
        },
    )


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


class _Products:
    """Operands of one shape, and the calls that multiply them."""

    def __init__(self, machine: Machine, shape: tuple[int, int, int]) -> None:
        self.machine, self.shape = machine, shape

    def operands(self) -> tuple[Tensor, Tensor]:
        m, n, k = self.shape
        return self.machine.randn(m, k), self.machine.randn(n, k, seed=1)

    def native(self, name: str, prepare: Callable[[], Callable[[], Tensor]]) -> Measurement:
        """Times torch's product; where it has none, Transformer Engine's; where that has none, torch's own words."""
        try:
            call = prepare()
            call()
        except (RuntimeError, NotImplementedError) as error:
            missing = MissingError(f"the library refuses: {first_line(error)}")
        except MissingError as error:
            missing = error
        else:
            return self.measurement(call, "")
        seconds = self.of_transformer_engine.get(name)
        if seconds is None:
            raise missing
        return self.compared(seconds, "by Transformer Engine")

    @cached_property
    def of_transformer_engine(self) -> dict[str, float]:
        """Format -> seconds (repro.cluster.gemm_rates), on cards with FP4 where Transformer Engine is installed.

        In a process of its own: what it refuses half-way leaves its state broken.
        """
        if not self.machine.has_fp4 or find_spec("transformer_engine") is None:
            return {}
        with tempfile.TemporaryDirectory(prefix="repro-bench-") as folder:
            out = Path(folder) / "rates.json"
            words = [*map(str, self.shape), "--out", str(out)]
            command = [sys.executable, "-m", "repro.cluster.gemm_rates", "--shape", *words]
            if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode:
                return {}
            rates = json.loads(out.read_text(encoding="utf-8"))["rates"]
        return {rate["format"]: rate["seconds"] for rate in rates if rate["seconds"]}

    def emulated(self, form: BlockFormat) -> Measurement:
        x, w = self.operands()
        if form is FP8_BLOCK and fp8_obstacle(x.device) is None:
            return self.measurement(
                card_fp8_product(x, w)[1], "operands quantised on the fly, FP8 on the card"
            )
        return self.measurement(lambda: emulated_product(x, w, form), "operands quantised on the fly")

    def bf16(self) -> Measurement:
        """The product that the others are compared with."""
        return self.compared(self.machine.bf16_product_seconds(*self.shape), "")

    def measurement(self, call: Callable[[], Tensor], note: str) -> Measurement:
        return self.compared(self.machine.seconds(lambda _: call()), note)

    def compared(self, seconds: float, note: str) -> Measurement:
        m, n, k = self.shape
        floor = self.machine.bf16_product_seconds(m, n, k)
        return Measurement(
            measured=seconds,
            floor=floor,
            floor_from="BF16 product of this shape, measured here",
            ratio=floor / seconds,
            note=note,
            details={"tflops": 2 * m * n * k / seconds / 1e12, "m": m, "n": n, "k": k},
        )

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
