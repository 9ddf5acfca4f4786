"""Table 1's numbers: rates of matrix products, and bytes of quantised tensors.

The paper's Table 1 gives the rates of Blackwell tensor cores (4x and 6x BF16 for FP4); rows here measure
y [M, N] = x [M, K] w [N, K]^T on the machine at hand:

    product/FORMAT/native     a library multiplies in this format: torch, or what training uses where torch does not
    product/FORMAT/emulated   operands are quantised on the fly, and multiplied in a wider format unless the card has
                              FP8 products with block scales: what training costs
    storage/FORMAT/TILE       bytes that packing really stores, codes and scales, against the format's record

`ratio` of a product is BF16's time over its own, which is the ratio of rates.

Does not: say how a format is multiplied (repro.bench.product_calls), or drive FP4 tensor cores by kernels of its own:
native rows take what torch and Transformer Engine offer.
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

from torch import Tensor

from repro.bench.machine import Machine
from repro.bench.product_calls import NativeCalls, card_fp8_product, emulated_product, fp8_obstacle
from repro.bench.rows import Case, Measurement, MissingError, first_line
from repro.numerics.formats import BLOCK_FORMATS, FP8_BLOCK, MXFP4, MXFP8, NVFP4, BlockFormat, QuantSpec
from repro.numerics.packing import make_packed

#: Large enough that a product dwarfs its call, small enough for seconds on one core and tenths on a GPU.
CPU_SHAPE = (1024, 1024, 1024)
GPU_SHAPE = (8192, 8192, 8192)
#: Rows and columns of the tensor whose packed bytes are counted; ratios do not depend on it.
STORED_SHAPE = (1024, 1024)


def product_cases(machine: Machine, *, shape: tuple[int, int, int] | None = None) -> list[Case]:
    """One case a format and kind, BF16 first; `shape` (M, N, K) defaults to one that fits the device."""
    bench = _Products(machine, shape or (GPU_SHAPE if machine.is_gpu else CPU_SHAPE))
    words = "x".join(map(str, bench.shape))
    cases = [Case("product/bf16/native", f"product {words}, bf16", bench.bf16)]
    cases += [
        Case(
            f"product/{name}/native", f"product {words}, {name}", lambda n=name, p=prepare: bench.native(n, p)
        )
        for name, prepare in bench.calls.by_format().items()
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


class _Products:
    """Times the calls of one shape against its BF16 product."""

    def __init__(self, machine: Machine, shape: tuple[int, int, int]) -> None:
        self.machine, self.shape = machine, shape
        self.calls = NativeCalls(machine, shape)

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
        x, w = self.calls.operands()
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
